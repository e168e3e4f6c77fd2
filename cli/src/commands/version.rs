//! Runs `istio-aux version`.

use std::fmt::Write;

use clap::Args;
use serde_json::json;

use super::CliResult;
use super::cluster::ClusterArgs;
use super::output::OutputArgs;
use crate::installation::{CLIENT_VERSION, Used, Versions, versions};

/// Print the versions of this program, of the webhook, and of the shims in pods
#[derive(Debug, Args)]
#[command(
    long_about = "Print the versions of this program, of the webhook, and of the shims in pods.

A pod keeps the shim that it was created with, so several may be in use; pods that have ended are not counted. Exit status: 0 all could be read, 1 something could not, 2 wrong arguments.",
    after_help = "examples:
  istio-aux version
  istio-aux version --client
  istio-aux version -o json"
)]
pub(super) struct VersionArgs {
    /// Print the version of this program only, without a cluster
    #[arg(long)]
    client: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: VersionArgs) -> CliResult {
    let VersionArgs { client, output, cluster } = arguments;
    if client {
        output.print(&json!({"client": CLIENT_VERSION}), &format!("client   {CLIENT_VERSION}\n"))?;
        return Ok(true);
    }
    cluster.run(async |client| {
        let versions = versions(&client).await;
        for reason in &versions.unreadable {
            eprintln!("istio-aux: {reason}");
        }
        output.print(&versions, &render(&versions))?;
        Ok(versions.unreadable.is_empty())
    })
}

fn render(versions: &Versions) -> String {
    let mut text = format!("client   {}\n", versions.client);
    if let Some(server) = &versions.server {
        let _ = writeln!(text, "server   {server}");
    }
    images(&mut text, "webhook", &versions.webhook);
    images(&mut text, "shim", &versions.shims);
    text
}

fn images(text: &mut String, what: &str, images: &[Used]) {
    if images.is_empty() {
        let _ = writeln!(text, "{what:<8} none");
    }
    for Used { version, image, pods } in images {
        let version = version.as_deref().unwrap_or("unknown");
        let _ = writeln!(text, "{what:<8} {version}, {image} ({pods} pod(s))");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_printed_with_pod_counts() {
        let versions = Versions {
            client: "0.1.0",
            server: Some("v1.34.4".to_owned()),
            webhook: vec![Used {
                version: Some("0.1.0".to_owned()),
                image: "r.example/webhook@sha256:1".to_owned(),
                pods: 2,
            }],
            ..Versions::default()
        };
        insta::assert_snapshot!(render(&versions), @r"
        client   0.1.0
        server   v1.34.4
        webhook  0.1.0, r.example/webhook@sha256:1 (2 pod(s))
        shim     none
        ");
    }
}
