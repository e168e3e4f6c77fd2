//! Runs what istio-aux is compared with: a controller that watches pods, and has those whose payloads have ended run `curl` beside Istio's proxy.

use std::time::Instant;

use e2e::Namespace;
use e2e::PodView;
use e2e::cluster::client_with_token_of;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::AbortHandle;

const ACCOUNT: &str = "watch-and-exec";
const QUIT: [&str; 5] = ["curl", "-fsS", "-X", "POST", "http://127.0.0.1:15020/quitquitquit"];

/// Runs the controller of a namespace, until it is dropped.
pub(crate) struct Controller(AbortHandle);

impl Controller {
    pub(crate) async fn start(ns: &Namespace) -> Self {
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
        ]);
        let role = "rbac.authorization.k8s.io/v1";
        ns.create_objects([
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}),
            json!({"apiVersion": role, "kind": "Role", "metadata": {"name": ACCOUNT}, "rules": rules}),
            json!({
                "apiVersion": role, "kind": "RoleBinding", "metadata": {"name": ACCOUNT},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": ns.name()}],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
            }),
        ])
        .await;
        let client = client_with_token_of(ns.name(), ACCOUNT).await;
        Self(tokio::spawn(watch(client, ns.name().to_owned())).abort_handle())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn watch(client: Client, namespace: String) {
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let events = pods.watch(&WatchParams::default(), "0").await.expect("pods are watched");
    let mut events = std::pin::pin!(events);
    let mut asked = false;
    while let Some(event) = events.try_next().await.expect("the watch goes on") {
        if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event
            && !asked
            && PodView(&pod).exit_code("main").is_some()
        {
            asked = true;
            let began = Instant::now();
            let container = AttachParams::default().container("istio-proxy").stdin(false);
            let command = pods.exec(&pod.name_any(), QUIT, &container).await.expect("the command is run");
            // What it printed is of no interest; its end is.
            drop(command.join().await);
            eprintln!("exec took {:?}", began.elapsed());
        }
    }
}
