//! Removes an installation. Only objects with its label are removed, and first what calls the webhook.

use std::time::{Duration, Instant};

use contract::names::MANAGED_BY_LABEL;
use kube::Client;
use kube::api::{DeleteParams, PropagationPolicy};
use serde::Serialize;
use serde_json::Value;
use tokio::time::sleep;

use super::kinds::{INSTALLATION_LABEL, INSTALLED, InstalledKind};
use crate::api::{self, Kind, NAMESPACES, Selection, WEBHOOK_CONFIGURATIONS, describe_error};
use crate::check::OURS;

/// How often an object is read while its removal is awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long API servers may go on calling a webhook whose configuration is deleted.
const CONFIGURATION_SETTLE_DELAY: Duration = Duration::from_secs(2);

/// An object of an installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Installed {
    pub(crate) api_version: String,
    pub(crate) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    #[serde(skip)]
    object_kind: Kind,
    #[serde(skip)]
    managed_by: Option<String>,
}

impl std::fmt::Display for Installed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let namespace = self.namespace.as_ref().map_or(String::new(), |namespace| format!(" -n {namespace}"));
        write!(f, "{}/{}{namespace}", self.kind, self.name)
    }
}

/// The objects of the installation in a namespace, in the order of removal. `Err` where something else manages them.
pub(crate) async fn find(client: &Client, namespace: &str, with_namespace: bool) -> Result<Vec<Installed>, String> {
    let mut found = Vec::new();
    for InstalledKind { kind, is_namespaced } in INSTALLED {
        let selection = Selection::in_namespace(is_namespaced.then_some(namespace)).labels(INSTALLATION_LABEL);
        let objects = api::list_metadata(client, kind, selection).await?;
        found.extend(objects.iter().map(|object| Installed::new(kind, object)));
    }
    if with_namespace && let Some(object) = api::get(client, NAMESPACES, None, namespace).await? {
        found.push(Installed::new(NAMESPACES, &object));
    }
    if let Some(object) = api::get(client, WEBHOOK_CONFIGURATIONS, None, OURS).await? {
        let ours = Installed::new(WEBHOOK_CONFIGURATIONS, &object);
        if !found.contains(&ours) {
            return Err(ours.foreign());
        }
        let called = object["webhooks"][0]["clientConfig"]["service"]["namespace"].as_str();
        if let Some(called) = called.filter(|called| *called != namespace) {
            return Err(format!("istio-aux is installed in another namespace; next: istio-aux uninstall -n {called}"));
        }
    }
    match found.iter().find(|object| object.managed_by.is_some()) {
        Some(object) => Err(object.foreign()),
        None => Ok(found),
    }
}

impl Installed {
    fn new(kind: Kind, object: &Value) -> Self {
        let metadata = &object["metadata"];
        Self {
            api_version: kind.api_version(),
            kind: kind.2,
            namespace: metadata["namespace"].as_str().map(str::to_owned),
            name: metadata["name"].as_str().unwrap_or_default().to_owned(),
            object_kind: kind,
            // kustomize and `kubectl apply` do not write it. Helm and Juju do, and keep books of their own.
            managed_by: metadata["labels"][MANAGED_BY_LABEL].as_str().map(str::to_owned),
        }
    }

    /// Why it is not removed, and by what it can be.
    fn foreign(&self) -> String {
        let (manager, next) = match self.managed_by.as_deref() {
            Some("Helm") => ("Helm", "helm uninstall istio-aux -n NAMESPACE"),
            Some("juju") => ("Juju", "juju remove-application istio-aux"),
            _ => ("something else", "remove it as it was installed"),
        };
        format!("{self} is managed by {manager}, so nothing is removed; next: {next}")
    }
}

/// Removes the objects one after the other, and waits until each is gone. Progress goes to stderr.
pub(crate) async fn uninstall(client: &Client, found: &[Installed], timeout: Duration) -> Result<(), String> {
    let began = Instant::now();
    for (index, object) in found.iter().enumerate() {
        eprintln!("istio-aux: removing {object}");
        let api = api::objects(client, object.object_kind, object.namespace.as_deref());
        let parameters = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..Default::default() };
        match api.delete(&object.name, &parameters).await {
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => return Err(format!("cannot remove {object}: {}", describe_error(error))),
            Ok(_) => {}
        }
        while api::get(client, object.object_kind, object.namespace.as_deref(), &object.name).await?.is_some() {
            if began.elapsed() > timeout {
                let left = found.len() - index;
                return Err(format!(
                    "{object} is not gone within {timeout:?}; {left} object(s) are left: run it again"
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
        if object.object_kind == WEBHOOK_CONFIGURATIONS {
            sleep(CONFIGURATION_SETTLE_DELAY).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fake::{Answer, client};
    use serde_json::json;

    const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/aux/deployments";

    fn labelled(labels: &Value) -> Value {
        json!({"metadata": {"name": "istio-aux", "labels": labels}})
    }

    fn configuration(namespace: &str, labels: &Value) -> Value {
        let mut object = labelled(labels);
        object["apiVersion"] = json!("admissionregistration.k8s.io/v1");
        object["kind"] = json!("MutatingWebhookConfiguration");
        object["webhooks"] = json!([{"clientConfig": {"service": {"namespace": namespace}}}]);
        object
    }

    fn installed_in(namespace: &str, labels: &Value) -> [Answer; 3] {
        let mut deployment = labelled(labels);
        deployment["metadata"]["namespace"] = json!("aux");
        [
            Answer::list(&format!("GET {CONFIGURATIONS}?"), &[labelled(labels)]),
            Answer::ok(&format!("GET {CONFIGURATIONS}/istio-aux"), configuration(namespace, labels)),
            Answer::list(&format!("GET {DEPLOYMENTS}?"), &[deployment]),
        ]
    }

    #[tokio::test]
    async fn the_webhook_configuration_is_the_first_to_be_removed() {
        let (client, requests) = client(installed_in("aux", &json!({})));
        let found = find(&client, "aux", false).await.unwrap();
        let names: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["MutatingWebhookConfiguration/istio-aux", "Deployment/istio-aux -n aux"]);
        let lists = requests.all().into_iter().filter(|line| line.contains("limit="));
        assert!(lists.clone().all(|line| line.contains("labelSelector=app.kubernetes.io%2Fname%3Distio-aux")));
        assert_eq!(lists.count(), INSTALLED.len());
    }

    #[tokio::test]
    async fn an_installation_of_helm_or_juju_or_in_another_namespace_is_left_alone() {
        let managed = |by: &str| json!({"app.kubernetes.io/managed-by": by});
        let cases = [
            (installed_in("aux", &managed("Helm")), "helm uninstall"),
            (installed_in("aux", &managed("juju")), "juju remove-application"),
            (installed_in("other", &json!({})), "istio-aux uninstall -n other"),
        ];
        for (answers, next) in cases {
            let (client, _) = client(answers);
            let error = find(&client, "aux", false).await.unwrap_err();
            assert!(error.contains(next), "{error}");
        }
    }

    #[tokio::test]
    async fn a_configuration_without_the_label_is_left_alone() {
        let answer = Answer::ok(&format!("GET {CONFIGURATIONS}/istio-aux"), configuration("aux", &json!({})));
        let (client, _) = client([answer]);
        let error = find(&client, "aux", false).await.unwrap_err();
        assert!(error.contains("is managed by something else"), "{error}");
    }

    #[tokio::test]
    async fn objects_are_deleted_in_order_and_their_end_is_awaited() {
        let (client, requests) = client([Answer::ok("DELETE /", json!({"kind": "Status", "status": "Success"}))]);
        let deployment = Installed {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment",
            namespace: Some("aux".to_owned()),
            name: "istio-aux".to_owned(),
            object_kind: crate::api::DEPLOYMENTS,
            managed_by: None,
        };
        let service = Installed { kind: "Service", object_kind: crate::api::SERVICES, ..deployment.clone() };
        uninstall(&client, &[deployment, service], Duration::ZERO).await.unwrap();
        let lines: Vec<String> = requests.all().iter().map(|line| line.trim_end_matches('?').to_owned()).collect();
        let (deployment, service) = (format!("{DEPLOYMENTS}/istio-aux"), "/api/v1/namespaces/aux/services/istio-aux");
        let expected = [
            format!("DELETE {deployment}"),
            format!("GET {deployment}"),
            format!("DELETE {service}"),
            format!("GET {service}"),
        ];
        assert_eq!(lines, expected);
    }
}
