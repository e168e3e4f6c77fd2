//! Checks a cluster before an installation: its version, native sidecars, Istio, and the caller's rights.

use anyhow::Result;
use api::describe_error;
use contract::version::Version;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::Value;

use super::finding::{Finding, Id};
use super::snapshot::{CONFIGURATION_NAME, Snapshot};
use super::{attempt, findings};
use crate::installation;

/// Is the first version whose webhook configurations have `matchConditions`.
const FIRST_VERSION: Version = Version { major: 1, minor: 28 };

/// Checks what an installation needs.
pub(super) async fn run(client: &Client, snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = state(snapshot);
    findings.push(attempt::kind_of_proxy(client).await);
    findings.push(rights(client).await);
    findings
}

fn state(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = vec![server(snapshot)];
    findings.extend(findings::nodes(snapshot));
    if let Some(configurations) = &snapshot.configurations {
        let is_ours = |configuration: &Value| configuration["metadata"]["name"] == CONFIGURATION_NAME;
        let message = if snapshot.has_policy == Some(true) || configurations.iter().any(is_ours) {
            "istio-aux is installed already: installing again is an upgrade"
        } else {
            "istio-aux is not installed yet"
        };
        findings.push(Finding::ok(Id::Installation, message));
        findings.push(findings::order(configurations, CONFIGURATION_NAME));
    }
    findings.extend(findings::injected_proxies(snapshot));
    findings.extend(findings::unreadable(snapshot));
    findings
}

fn server(snapshot: &Snapshot) -> Finding {
    match snapshot.server {
        Some(version) if version < FIRST_VERSION => Finding::problem(
            Id::ServerVersion,
            format!("Kubernetes {version} is too old: webhook configurations have no matchConditions"),
            format!("upgrade the cluster to Kubernetes {FIRST_VERSION} or newer"),
        ),
        _ => findings::server(snapshot),
    }
}

/// Checks that the caller may create every object of the webhook profile.
async fn rights(client: &Client) -> Finding {
    match missing_rights(client).await {
        Err(error) => {
            let reason = describe_error(error.as_ref());
            Finding::info(Id::Rights, format!("your rights cannot be read: {reason}"))
        }
        Ok(missing) if missing.is_empty() => Finding::ok(Id::Rights, "you may create all objects of an installation"),
        Ok(missing) => Finding::problem(
            Id::Rights,
            format!("you may not create: {}", missing.join(", ")),
            "install as a cluster administrator, or ask one for these rights",
        ),
    }
}

/// Returns the plurals of the kinds that the caller may not create.
async fn missing_rights(client: &Client) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    let reviews = Api::all(client.clone());
    for (group, plural) in installation::resources()? {
        let attributes = ResourceAttributes {
            group: Some(group),
            resource: Some(plural.clone()),
            verb: Some("create".to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() },
            ..SelfSubjectAccessReview::default()
        };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(plural);
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Severity;
    use api::fake::{Answer, client};
    use serde_json::json;

    const REVIEWS: &str = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

    fn review(allowed: bool) -> Value {
        json!({"metadata": {}, "spec": {}, "status": {"allowed": allowed}})
    }

    #[tokio::test]
    async fn missing_rights_are_a_problem_and_named() {
        let (allowed, requests) = client([Answer::ok(REVIEWS, review(true))]);
        assert_eq!(rights(&allowed).await.severity, Severity::Ok);
        assert!(requests.all().len() > 10);
        let (denied, _) = client([Answer::ok(REVIEWS, review(false))]);
        let finding = rights(&denied).await;
        assert_eq!(finding.severity, Severity::Problem);
        assert!(finding.message.contains("clusterroles") && finding.message.contains("namespaces"), "{finding:?}");
        assert!(!finding.message.contains("podmonitors"), "{finding:?}");
    }

    #[test]
    fn the_state_before_an_installation_is_judged() {
        let injector = json!({"metadata": {"name": "istio-sidecar-injector"},
            "webhooks": [{"name": "rev.namespace.sidecar-injector.istio.io"}]});
        let ours = json!({"metadata": {"name": "istio-aux"}, "webhooks": []});
        let cases = [
            ("1.27", vec![injector.clone()], Id::ServerVersion, Severity::Problem),
            ("1.28", vec![injector.clone()], Id::ServerVersion, Severity::Info),
            ("1.34", vec![injector.clone()], Id::ServerVersion, Severity::Ok),
            ("1.34", vec![], Id::IstioInjector, Severity::Problem),
            ("1.34", vec![injector.clone()], Id::IstioInjector, Severity::Ok),
            ("1.34", vec![injector, ours], Id::Installation, Severity::Ok),
        ];
        for (version, configurations, id, severity) in cases {
            let configurations = Some(configurations);
            let istiods = vec![json!({"metadata": {"namespace": "istio-system", "name": "istiod"}})];
            let snapshot = Snapshot { server: Version::parse(version), configurations, istiods, ..Snapshot::default() };
            let findings = state(&snapshot);
            assert!(findings.iter().any(|finding| finding.id == Id::NativeSidecars), "{findings:?}");
            let finding = findings.iter().find(|finding| finding.id == id).unwrap();
            assert_eq!(finding.severity, severity, "{version}: {finding:?}");
        }
    }
}
