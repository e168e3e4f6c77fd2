//! Runs `istio-aux proxies`.

use clap::Args;

use super::CliResult;
use super::cluster::ClusterArgs;
use super::output::OutputArgs;
use crate::proxies::{self, Proxy};

/// List the node proxies of all nodes, or print the log of one
#[derive(Debug, Args)]
#[command(
    long_about = "List the node proxies of all nodes, or print the log of one.

Asks each node agent, so it needs get on the ClusterRoleBinding istio-aux-node, and in the agents' namespace list on
pods, and get and create on pods/exec; --logs asks the agent of the pod's node, and needs get on the pod. Exit status:
0 each agent that was asked has answered, 1 one has not, or there is no agent, pod or proxy, 2 wrong arguments.",
    after_help = "examples:
  istio-aux proxies
  istio-aux proxies --node worker-1
  istio-aux proxies --logs team/train-0
  istio-aux proxies -o json | jq '.proxies[] | select(.state != \"running\")'"
)]
pub(super) struct ProxiesArgs {
    /// Those of this node only
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// The log of this pod's proxy instead: NAMESPACE/POD, as in the list
    #[arg(long, value_name = "POD", conflicts_with_all = ["node", "output"])]
    logs: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(arguments: ProxiesArgs) -> CliResult {
    let ProxiesArgs { node, logs, output, cluster } = arguments;
    cluster.run(async |client| {
        if let Some(pod) = logs {
            proxies::write_logs(&client, &pod, &mut tokio::io::stdout()).await?;
            return Ok(true);
        }
        let all = proxies::list(&client, node.as_deref()).await?;
        for reason in &all.unreadable {
            eprintln!("istio-aux: {reason}");
        }
        output.print(&all, &table(&all.proxies))?;
        Ok(all.unreadable.is_empty())
    })
}

fn table(proxies: &[Proxy]) -> String {
    let head = ["POD", "NODE", "PROXY", "CERTIFICATE", "IMAGE"].map(str::to_owned);
    let rows = proxies.iter().map(|proxy| {
        let certificate = proxy.certificate_expires_in_seconds.map_or_else(|| "none".to_owned(), hours);
        [proxy.pod.clone(), proxy.node.clone(), proxy.state.clone(), certificate, proxy.image.clone()]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn hours(seconds: u64) -> String {
    let minutes = seconds / 60;
    format!("{}h{}m", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_line_for_each_proxy() {
        let proxy = |pod: &str, state: &str, left| Proxy {
            pod: pod.into(),
            node: "worker-1".into(),
            state: state.into(),
            certificate_expires_in_seconds: left,
            image: "proxyv2".into(),
            sandbox: "abc".into(),
        };
        let expected = "\
POD           NODE      PROXY    CERTIFICATE  IMAGE
team/train-0  worker-1  running  1h30m        proxyv2
team/x        worker-1  missing  none         proxyv2
";
        assert_eq!(table(&[proxy("team/train-0", "running", Some(5_430)), proxy("team/x", "missing", None)]), expected);
        assert_eq!(table(&[]), "POD  NODE  PROXY  CERTIFICATE  IMAGE\n");
    }
}
