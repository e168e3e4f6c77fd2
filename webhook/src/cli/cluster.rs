//! `istio-aux check` and `istio-aux finish`: a cluster, with the rights of whoever asks.

use std::future::Future;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;

use super::Ended;
use super::shim;
use crate::api;
use crate::check::{self, Scope};
use crate::finish::{self, Which};

/// Say what is wrong in a cluster, and what to do about it
///
/// Reads versions, Istio's injectors, the webhook and its certificate, namespaces and pods, with your own rights; what it may
/// not read it says. Exit status: 0 all well, 1 something is to be mended, 2 arguments that make no sense.
#[derive(Debug, Args)]
#[command(after_help = "examples:
  istio-aux check
  istio-aux check -n team -o json
  istio-aux check --probe        # before delivery image-volume")]
pub(super) struct Check {
    /// Only this namespace, and what would happen to each of its pods
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Run the shim from an image volume on one node of each kind, in the namespace (default: the context's)
    #[arg(long)]
    probe: bool,
    /// How to print what was found
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
    /// The context of the kubeconfig; the current one where it is not said
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    shim: shim::Options,
}

/// End the proxies of pods whose payload has ended
///
/// For pods that were there before istio-aux. Posts to pilot-agent through a port that the API server forwards, so it needs
/// get and create on pods/portforward. Pods whose payload still runs, or will again, are left alone.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("which").required(true).args(["all_stuck", "pods"]),
    after_help = "examples:
  istio-aux finish -n team hello-7jwpb
  istio-aux finish --all-stuck -A --dry-run"
)]
pub(super) struct Finish {
    /// The pods
    #[arg(value_name = "POD")]
    pods: Vec<String>,
    /// Every pod that is stuck, of the namespace or, with -A, of all
    #[arg(long)]
    all_stuck: bool,
    /// The namespace; the context's where it is not said
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "pods"])]
    all_namespaces: bool,
    /// Say which, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// How long a pod may take to end
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// The context of the kubeconfig; the current one where it is not said
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(super) fn check(arguments: Check) -> Ended {
    block_on(async {
        let client = api::client(arguments.context.as_deref()).await?;
        let here = || arguments.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let probe_in = arguments.probe.then(here);
        let scope = Scope { namespace: arguments.namespace, probe_in, settings: arguments.shim.settings(true) };
        let found = check::run(&client, &scope).await?;
        let printed = match arguments.output {
            Output::Text => check::print(&found, &mut io::stdout()),
            Output::Json => {
                println!("{:#}", json!({"well": check::is_well(&found), "findings": found}));
                Ok(())
            }
        };
        printed.map_err(|error| format!("cannot write: {error}"))?;
        Ok(exit(check::is_well(&found)))
    })
}

pub(super) fn finish(arguments: Finish) -> Ended {
    block_on(async {
        let client = api::client(arguments.context.as_deref()).await?;
        let namespace = arguments.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        let which = if arguments.all_stuck {
            Which::AllStuck { namespace: (!arguments.all_namespaces).then_some(namespace) }
        } else {
            Which::Named { namespace, names: arguments.pods }
        };
        finish::run(&client, which, arguments.dry_run, arguments.timeout).await.map(exit)
    })
}

fn exit(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn block_on(work: impl Future<Output = Ended>) -> Ended {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start: {error}"))?.block_on(work)
}
