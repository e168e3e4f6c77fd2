//! Reads the kubelet's report: the annotation `istio-aux.io/ended`, in a volume of the downward API.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use contract::args::WatchArgs;
use contract::names::ENDED_ANNOTATION;

/// Reads the file that has the pod's annotations.
#[derive(Debug)]
pub(crate) struct EndedReport {
    file: Option<PathBuf>,
    /// The version of the file to ignore: all containers may have been restarted since it was written.
    outdated: Option<Version>,
}

impl EndedReport {
    /// Returns a reader of the file that `args` names, if any.
    pub(crate) fn new(args: &WatchArgs) -> Self {
        let file = args.annotations.as_ref().map(PathBuf::from);
        let outdated = file.as_deref().filter(|_| args.all_may_restart).and_then(version);
        Self { file, outdated }
    }

    /// Returns the exit codes of the awaited containers, such as `main=0`, once the kubelet has reported them.
    pub(crate) fn read(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        if self.outdated.is_some() && version(file) == self.outdated {
            return None;
        }
        annotation(&fs::read_to_string(file).ok()?)
    }
}

/// Inode, and the time of the last change in seconds and nanoseconds. The kubelet replaces a file that changes (`AtomicWriter`).
type Version = (u64, i64, i64);

fn version(file: &Path) -> Option<Version> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
}

/// Returns the annotation's value. The kubelet writes a line for each: `KEY="VALUE"` (`FormatMap` in `fieldpath.go`).
fn annotation(text: &str) -> Option<String> {
    let value =
        text.lines().find_map(|line| line.strip_prefix(ENDED_ANNOTATION)?.strip_prefix("=\"")?.strip_suffix('"'));
    value.filter(|value| !value.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::policy::RestartPolicy;

    #[test]
    fn annotation_is_found_among_others() {
        let cases = [
            ("a=\"b\"\nistio-aux.io/ended=\"main=0,metrics=137\"\n", Some("main=0,metrics=137")),
            ("istio-aux.io/ended-too=\"main=0\"\n", None),
            ("note=\"\\nistio-aux.io/ended=\\\"main=0\\\"\"\n", None),
            ("istio-aux.io/ended=\"\"\n", None),
            ("istio-aux.io/ended=\"main", None),
            ("", None),
        ];
        for (text, value) in cases {
            assert_eq!(annotation(text).as_deref(), value, "{text:?}");
        }
    }

    #[test]
    fn report_of_an_earlier_run_does_not_count() {
        const REPORT: &str = "istio-aux.io/ended=\"main=0\"\n";
        let directory = tempfile::tempdir().unwrap();
        let [file, new] = ["annotations", "new"].map(|name| directory.path().join(name));
        fs::write(&file, REPORT).unwrap();
        let args = |all_may_restart| WatchArgs {
            annotations: Some(file.display().to_string()),
            all_may_restart,
            ..WatchArgs::new(vec!["main".to_owned()], RestartPolicy::Never)
        };
        let before = EndedReport::new(&args(false));
        assert_eq!(before.read().as_deref(), Some("main=0"));
        let reader = EndedReport::new(&args(true));
        assert_eq!(reader.read(), None);
        // Of the same time, as by a clock that was set back.
        fs::write(&new, REPORT).unwrap();
        let written = fs::metadata(&file).unwrap().modified().unwrap();
        fs::File::options().append(true).open(&new).unwrap().set_modified(written).unwrap();
        fs::rename(&new, &file).unwrap();
        assert_eq!(reader.read().as_deref(), Some("main=0"));
        fs::remove_file(&file).unwrap();
        let reader = EndedReport::new(&args(true));
        fs::write(&file, REPORT).unwrap();
        assert_eq!(reader.read().as_deref(), Some("main=0"));
    }

    #[test]
    fn missing_file_is_no_report() {
        let args = WatchArgs::new(vec!["main".to_owned()], RestartPolicy::Never);
        assert_eq!(EndedReport::new(&args).read(), None);
        let args = WatchArgs { annotations: Some("/no/such/file".to_owned()), ..args };
        assert_eq!(EndedReport::new(&args).read(), None);
    }
}
