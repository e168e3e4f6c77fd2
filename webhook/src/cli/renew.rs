//! `istio-aux renew`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::CliResult;
use super::cluster::ClusterArgs;
use super::output::OutputArgs;
use crate::causes::with_causes;
use crate::certificates::request_renewal;

/// Ask the webhook for a new CA, key and certificate
#[derive(Debug, Args)]
#[command(
    long_about = "Ask the webhook for a new CA, key and certificate: for instance after its key has leaked.

For webhooks with --self-signed. Marks the Secret; the running replicas renew without rejecting a pod, and the old CA is no
longer trusted minutes later. Needs patch on the Secret. Exit status: 0 requested, 1 it failed, 2 wrong arguments.",
    after_help = "examples:
  istio-aux renew
  istio-aux renew -n mesh-tools --secret istio-aux-certificate"
)]
pub(super) struct RenewArgs {
    /// The namespace of the webhook
    #[arg(short, long, value_name = "NAME", default_value = "istio-aux")]
    namespace: String,
    /// The Secret with the certificate
    #[arg(long, value_name = "NAME", default_value = "istio-aux-certificate")]
    secret: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: RenewArgs) -> CliResult {
    let RenewArgs { namespace, secret, output, cluster } = arguments;
    cluster.run(async |client| {
        request_renewal(&client, &namespace, &secret).await.map_err(|error| with_causes(&error))?;
        let text = format!(
            "a renewal of Secret {namespace}/{secret} is requested; next: kubectl -n {namespace} logs -l \
             app.kubernetes.io/name=istio-aux, and istio-aux check\n"
        );
        output.print(&json!({"requested": true, "namespace": namespace, "secret": secret}), &text)?;
        Ok(ExitCode::SUCCESS)
    })
}
