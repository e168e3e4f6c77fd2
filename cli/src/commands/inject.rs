//! Runs `istio-aux inject`: reads manifests from files, and prints the changed ones.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use inject::Settings;
use inject::args::{ShimArgs, has_default_image};

use super::CliResult;
use super::output::print;
use crate::offline;

/// Lists the extensions of manifests in a directory, as kubectl has them.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// Print manifests as the webhook would change their pods, without a cluster
#[derive(Debug, Args)]
#[command(
    long_about = "Print manifests as the webhook would change their pods, without a cluster: for GitOps and dry runs.

Pods, and the pod templates of Jobs, CronJobs, Deployments and their like, JobSets, the training operator's jobs and Argo's
workflows; in YAML or JSON, lists and several documents in one file too. Documents that need no change go through byte for
byte. A YAML document that changes is written again from its content: literal block scalars stay, comments are lost,
folded scalars become one line, and quotes may change.",
    after_help = "examples:
  istio-aux inject -f job.yaml | kubectl apply -f -
  istio-aux inject -f manifests/ --assume-proxy --shim-image=registry.example/istio-aux/shim:0.1.0 > all.yaml
  kustomize build . | istio-aux inject -f - --assume-proxy --shim-image=… > all.yaml"
)]
pub(super) struct InjectArgs {
    /// A file or directory of manifests, or - for standard input; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    filenames: Vec<PathBuf>,
    /// Add the shim too: Istio's injector will add its proxy in the cluster. Without it, only the startup hold
    #[arg(long)]
    assume_proxy: bool,
    /// Whether the cluster has native sidecars (Kubernetes 1.29 and later). Without them the shim is the parent of istio-proxy,
    /// as only the webhook can make it: then only the startup hold
    #[arg(long, value_name = "enabled|disabled", default_value = "enabled", value_parser = ["enabled", "disabled"])]
    native_sidecars: String,
    #[command(flatten)]
    shim: ShimArgs,
}

/// Prints all files, injected. Nothing is printed if one of them cannot be read.
pub(super) fn inject(arguments: InjectArgs) -> CliResult {
    let settings = arguments.shim.settings(arguments.native_sidecars == "enabled");
    let (mut all, mut warnings) = (String::new(), Vec::new());
    for file in expand(&arguments.filenames)? {
        let name = file.display();
        let text = read(&file).with_context(|| format!("{name} cannot be read"))?;
        let injected = offline::inject(&text, &settings, arguments.assume_proxy).with_context(|| name.to_string())?;
        append(&mut all, &injected.text);
        warnings.extend(injected.warnings);
    }
    warnings.extend(missing_image(&all, &settings));
    for warning in warnings {
        eprintln!("istio-aux: {warning}");
    }
    print(&all)?;
    Ok(true)
}

/// Returns a warning where the printed manifests have the shim's default image.
fn missing_image(printed: &str, settings: &Settings) -> Option<String> {
    let image = &settings.shim_image;
    let is_missing = has_default_image(settings) && printed.contains(image);
    is_missing.then(|| format!("no registry has the shim's image {image}; next: --shim-image=IMAGE"))
}

/// Returns the files, with each directory replaced by its manifests in the order of their names.
fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(manifests_in(path)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

fn manifests_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let name = directory.display();
    let entries = std::fs::read_dir(directory).with_context(|| format!("{name} cannot be read"))?;
    let is_manifest = |path: &PathBuf| {
        path.is_file() && path.extension().and_then(OsStr::to_str).is_some_and(|end| EXTENSIONS.contains(&end))
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_manifest).collect();
    if files.is_empty() {
        bail!("{name} has no manifests: no file *.yaml, *.yml or *.json");
    }
    files.sort();
    Ok(files)
}

/// Appends the text of another file as documents of its own.
fn append(all: &mut String, text: &str) {
    if !all.is_empty() {
        if !all.ends_with('\n') {
            all.push('\n');
        }
        if !text.starts_with("---") && !text.starts_with('%') {
            all.push_str("---\n");
        }
    }
    all.push_str(text);
}

fn read(file: &Path) -> io::Result<String> {
    if file == Path::new("-") { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(file) }
}

#[cfg(test)]
mod tests {
    use inject::args::default_settings;

    use super::*;

    #[test]
    fn default_image_is_warned_of_where_it_is_printed() {
        let [default, other] = [default_settings(), Settings::new("r/shim:1")];
        let printed = format!("image: {}\n", default.shim_image);
        let warning = format!("no registry has the shim's image {}; next: --shim-image=IMAGE", default.shim_image);
        assert_eq!(missing_image(&printed, &default), Some(warning));
        assert_eq!(missing_image("only the hold", &default), None);
        assert_eq!(missing_image(&printed, &other), None, "it was there before");
    }

    #[test]
    fn directory_lists_its_manifests_in_order() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.yaml", "a.json", "c.yml", "readme.md"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let files = expand(&[PathBuf::from("-"), directory.path().to_owned()]).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap()).collect();
        assert_eq!(names, ["-", "a.json", "b.yaml", "c.yml"]);
    }

    #[test]
    fn directory_without_manifests_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(expand(&[directory.path().to_owned()]).unwrap_err().to_string().contains("has no manifests"));
    }

    #[test]
    fn files_become_documents_of_one_text() {
        let mut all = String::new();
        for text in ["a: 1", "b: 2\n", "---\nc: 3\n"] {
            append(&mut all, text);
        }
        assert_eq!(all, "a: 1\n---\nb: 2\n---\nc: 3\n");
    }
}
