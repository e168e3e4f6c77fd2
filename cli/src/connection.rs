//! Which cluster to use, as whom, and for how long to wait for it.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use contract::error_chain::display_chain;

/// How to reach a cluster. Empty, it is kubectl's default: the current context, or the pod's own cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    /// A kubeconfig in place of `KUBECONFIG` and `~/.kube/config`.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// A context in place of the current one.
    pub(crate) context: Option<String>,
    /// The user to impersonate.
    pub(crate) user: Option<String>,
    /// The groups to impersonate.
    pub(crate) groups: Vec<String>,
    /// How long the server may take to answer; `None`: for ever.
    pub(crate) request_timeout: Option<Duration>,
}

impl Connection {
    /// A client. `Err` says why there is none and what to do.
    pub(crate) async fn client(&self) -> Result<Client, String> {
        let mut config = self.config().await.map_err(|reason| {
            format!("no cluster: {reason}; set KUBECONFIG or --kubeconfig, or see kubectl config get-contexts")
        })?;
        if let Some(user) = &self.user {
            config.auth_info.impersonate = Some(user.clone());
        }
        if !self.groups.is_empty() {
            config.auth_info.impersonate_groups = Some(self.groups.clone());
        }
        if let Some(limit) = self.request_timeout {
            config.connect_timeout = Some(limit);
            config.read_timeout = Some(limit);
            // Otherwise the time a connection was idle counts against its next answer.
            config.reset_reader_on_write = true;
        }
        Client::try_from(config).map_err(|error| format!("no cluster: {}", display_chain(&error)))
    }

    async fn config(&self) -> Result<Config, String> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| display_chain(&error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        match config {
            Err(_) if self.kubeconfig.is_none() && self.context.is_none() && is_in_cluster() => {
                Config::incluster().map_err(|error| display_chain(&error))
            }
            config => config.map_err(|error| display_chain(&error)),
        }
    }
}

/// Whether this runs in a pod, by the variable that the kubelet sets.
fn is_in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
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

    fn connection() -> (tempfile::TempDir, Connection) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        std::fs::write(&file, KUBECONFIG).unwrap();
        (directory, Connection { kubeconfig: Some(file), ..Connection::default() })
    }

    #[tokio::test]
    async fn a_kubeconfig_and_a_context_select_the_cluster() {
        let (_directory, one) = connection();
        let two = Connection { context: Some("two".to_owned()), ..one.clone() };
        for (connection, namespace) in [(one, "first"), (two, "second")] {
            assert_eq!(connection.client().await.unwrap().default_namespace(), namespace);
        }
    }

    #[tokio::test]
    async fn a_context_that_is_not_there_is_an_error_with_the_next_step() {
        let (_directory, connection) = connection();
        let connection = Connection { context: Some("three".to_owned()), ..connection };
        let error = connection.client().await.err().unwrap();
        assert!(error.starts_with("no cluster: "), "{error}");
        assert!(error.contains("three") && error.contains("kubectl config get-contexts"), "{error}");
        assert_eq!(error.matches("three").count(), 1, "{error}");
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_described_once() {
        let (_directory, connection) = connection();
        let connection = Connection { request_timeout: Some(Duration::from_secs(5)), ..connection };
        let client = connection.client().await.unwrap();
        let error = api::describe_error(client.apiserver_version().await.unwrap_err());
        assert!(error.contains("refused"), "{error}");
        assert_eq!(error.matches("client error").count(), 1, "{error}");
    }
}
