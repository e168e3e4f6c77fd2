//! Connects to a cluster, by the options of every command that needs one.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use api::{describe_error, limit_answers};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::CliResult;

/// Heads these options in a help text.
pub(super) const CLUSTER_HEADING: &str = "Cluster";

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = CLUSTER_HEADING)]
pub(super) struct ClusterArgs {
    /// The kubeconfig file; without it, KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; without it, the current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The user to impersonate
    #[arg(long = "as", value_name = "USER")]
    user: Option<String>,
    /// A group to impersonate; repeatable
    #[arg(long = "as-group", value_name = "GROUP", requires = "user")]
    groups: Vec<String>,
    /// How long the API server may take to answer; 0s: for ever
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    request_timeout: Duration,
}

impl ClusterArgs {
    /// Runs a command with a client of the cluster.
    pub(super) fn run(self, command: impl AsyncFnOnce(Client) -> CliResult) -> CliResult {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        runtime.block_on(async { command(self.client().await?).await })
    }

    async fn client(&self) -> Result<Client> {
        let mut config = self.config().await.map_err(|error| {
            let reason = describe_error(error.as_ref());
            anyhow!("no cluster: {reason}; set KUBECONFIG or --kubeconfig, or see kubectl config get-contexts")
        })?;
        if let Some(user) = &self.user {
            config.auth_info.impersonate = Some(user.clone());
        }
        if !self.groups.is_empty() {
            config.auth_info.impersonate_groups = Some(self.groups.clone());
        }
        if !self.request_timeout.is_zero() {
            config.connect_timeout = Some(self.request_timeout);
            limit_answers(&mut config, self.request_timeout);
        }
        Client::try_from(config).context("no cluster")
    }

    async fn config(&self) -> Result<Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(file) => Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await,
            None => match of_several_files()? {
                Some(merged) => Config::from_custom_kubeconfig(merged, &options).await,
                None => Config::from_kubeconfig(&options).await,
            },
        };
        let is_set = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
        let asks_for_another = self.kubeconfig.is_some() || self.context.is_some() || is_set("KUBECONFIG");
        match config {
            // Set in every pod. A kubeconfig that exists but is invalid means another cluster: do not fall back to this one.
            Err(error) if !asks_for_another && is_missing(&error) && is_set("KUBERNETES_SERVICE_HOST") => {
                Ok(Config::incluster()?)
            }
            config => Ok(config?),
        }
    }
}

/// Merges the files that KUBECONFIG names, if these are several, without those that do not exist, as kubectl does.
fn of_several_files() -> Result<Option<Kubeconfig>> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let paths: Vec<PathBuf> = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    let mut there = paths.iter().filter(|path| paths.len() > 1 && path.exists());
    let Some(first) = there.next() else { return Ok(None) };
    let merged =
        there.try_fold(Kubeconfig::read_from(first)?, |merged, path| merged.merge(Kubeconfig::read_from(path)?))?;
    Ok(Some(merged))
}

fn is_missing(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => {
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        }
        _ => false,
    }
}

/// Returns the namespace that was given, or the context's.
pub(super) fn namespace_or_default(namespace: Option<String>, client: &Client) -> String {
    namespace.unwrap_or_else(|| client.default_namespace().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: here, cluster: {server: 'http://127.0.0.1:1'}}
users:
- {name: me, user: {}}
contexts:
- {name: one, context: {cluster: here, user: me, namespace: first}}
- {name: two, context: {cluster: here, user: me, namespace: second}}
";

    fn arguments() -> (tempfile::TempDir, ClusterArgs) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        std::fs::write(&file, KUBECONFIG).unwrap();
        (directory, ClusterArgs { kubeconfig: Some(file), ..ClusterArgs::default() })
    }

    #[tokio::test]
    async fn kubeconfig_and_context_select_the_cluster() {
        let (_directory, one) = arguments();
        let two = ClusterArgs { context: Some("two".to_owned()), ..one.clone() };
        for (arguments, namespace) in [(one, "first"), (two, "second")] {
            assert_eq!(arguments.client().await.unwrap().default_namespace(), namespace);
        }
    }

    #[tokio::test]
    async fn missing_context_is_an_error_with_a_next_step() {
        let (_directory, arguments) = arguments();
        let arguments = ClusterArgs { context: Some("three".to_owned()), ..arguments };
        let error = describe_error(arguments.client().await.err().unwrap().as_ref());
        assert!(error.starts_with("no cluster: "), "{error}");
        assert!(error.contains("three") && error.contains("kubectl config get-contexts"), "{error}");
        assert_eq!(error.matches("three").count(), 1, "{error}");
    }

    #[tokio::test]
    async fn unavailable_server_is_described_once() {
        let (_directory, arguments) = arguments();
        let arguments = ClusterArgs { request_timeout: Duration::from_secs(5), ..arguments };
        let client = arguments.client().await.unwrap();
        let error = describe_error(&client.apiserver_version().await.unwrap_err());
        assert!(error.contains("refused"), "{error}");
        assert_eq!(error.matches("client error").count(), 1, "{error}");
    }
}
