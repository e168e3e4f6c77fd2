//! `istio-aux inject` and `istio-aux policy`: what they print.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::Ended;
use super::shim;
use crate::offline;
use crate::policy::{self, ApiVersion};

/// Print manifests as the webhook would have changed their pods, without a cluster
#[derive(Debug, Args)]
#[command(
    long_about = "Print manifests as the webhook would have changed their pods, without a cluster: for GitOps and dry runs.

Pods, and the pod templates of Jobs, CronJobs, Deployments and their like, JobSets, the training operator's jobs and Argo's
workflows; in YAML or JSON, lists and many documents in one file too. What is not concerned goes through as it is; a document
that changes is written anew, without its comments.",
    after_help = "examples:
  istio-aux inject -f job.yaml | kubectl apply -f -
  kustomize build . | istio-aux inject -f - --assume-proxy > all.yaml"
)]
pub(super) struct Inject {
    /// The manifests; - for standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    filename: PathBuf,
    /// Add the shim too: Istio's injector will add its proxy in the cluster. Without it, the hold only
    #[arg(long)]
    assume_proxy: bool,
    #[command(flatten)]
    shim: shim::Options,
}

pub(super) fn inject(arguments: Inject) -> Ended {
    let name = arguments.filename.display().to_string();
    let text = read(&arguments.filename).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let settings = arguments.shim.settings(true);
    // Nothing is printed before all of it could be read.
    let injected =
        offline::inject(&text, &settings, arguments.assume_proxy).map_err(|error| format!("{name}, {error}"))?;
    io::stdout().write_all(injected.text.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
    for warning in injected.warnings {
        eprintln!("istio-aux: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Print the policy profile: objects that have the API server itself do what the webhook does
#[derive(Debug, Args)]
#[command(
    long_about = "Print the policy profile: objects that have the API server itself do what the webhook does.

A MutatingAdmissionPolicy and its bindings, for Kubernetes 1.36 and later; for 1.34 and 1.35 with --api-version=v1beta1, where the
feature gate MutatingAdmissionPolicy is on. No component runs, and there is no certificate. docs/policy.md says what a policy
cannot do.",
    after_help = "examples:
  istio-aux policy | kubectl apply --server-side -f -
  istio-aux policy --delivery=image-volume --shim-image=registry.example/istio-aux/shim:0.1.0 > policy.yaml"
)]
pub(super) struct Policy {
    /// The version of the API that the server has
    #[arg(long, value_enum, value_name = "VERSION", default_value_t = ApiVersion::V1)]
    api_version: ApiVersion,
    #[command(flatten)]
    shim: shim::Options,
}

pub(super) fn policy(arguments: Policy) -> Ended {
    let text = policy::manifests(&arguments.shim.settings(true), arguments.api_version)?;
    io::stdout().write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> io::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        Ok(text)
    } else {
        std::fs::read_to_string(file)
    }
}
