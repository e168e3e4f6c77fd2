//! Judges a healthy tenant, and tenants that differ from it in one thing.

use inject::tenancy::objects::{labelled, pod_default, role_binding};
use serde_json::json;

use super::super::super::finding::Severity;
use super::*;
use crate::pods::fixtures::labelled as in_namespace;

fn pod() -> TenantPod {
    let (name, account) = ("step".to_owned(), "default".to_owned());
    TenantPod { name, account, lacks_proxy: false, has_token: true }
}

/// Returns an object as the controller has applied it.
fn applied(object: Value) -> Value {
    let mut object = labelled(object, "istio-aux");
    object["metadata"]["managedFields"] = json!([{"manager": "istio-aux-tenancy", "operation": "Apply"}]);
    object
}

fn policy(name: &str, rule: &Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "team"}, "spec": {"rules": [rule]}})
}

/// Returns a rule of the profile controller's policy: it admits all callers of the namespace.
fn of_the_profile() -> Value {
    policy("ns-owner-access-istio", &json!({"when": [{"key": "source.namespace", "values": ["team"]}]}))
}

fn healthy() -> Snapshot {
    let labels = json!({"istio-aux.io/tenancy": "enabled", "istio-aux.io/pipelines-token": "enabled"});
    let tenant = Tenant {
        has_role: Some(true),
        role_bindings: Some(vec![applied(role_binding("team", PIPELINES_ROLE, &["default".to_owned()]))]),
        pod_default: Some(applied(pod_default("team"))),
        policies: vec![of_the_profile()],
        peer_authentications: Vec::new(),
    };
    let mut snapshot = Snapshot { tenant: Some(tenant), ..Snapshot::default() };
    snapshot.namespaces = vec![in_namespace("team", &labels)];
    snapshot.namespaces[0]["metadata"]["annotations"] = json!({"istio-aux.io/pipelines-accounts": "default"});
    snapshot.pods.tenants = vec![pod()];
    snapshot
}

type Change = fn(&mut Snapshot);

fn tenant(snapshot: &mut Snapshot) -> &mut Tenant {
    snapshot.tenant.as_mut().unwrap()
}

fn label_of(snapshot: &mut Snapshot, key: &str, value: Value) {
    snapshot.namespaces[0]["metadata"]["labels"][key] = value;
}

#[test]
fn bindings_that_cannot_be_read_are_not_called_kept() {
    let mut snapshot = healthy();
    tenant(&mut snapshot).role_bindings = None;
    assert_eq!(of(&snapshot), []);
}

#[test]
fn healthy_tenant_has_one_ok_finding() {
    let found = of(&healthy());
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].id, found[0].severity), (Id::Tenancy, Severity::Ok));
}

#[test]
fn role_that_the_namespace_asks_for_gives_rights() {
    let mut snapshot = healthy();
    snapshot.namespaces[0]["metadata"]["annotations"]["istio-aux.io/pipelines-role"] = json!("kubeflow-pipelines-view");
    tenant(&mut snapshot).role_bindings.as_mut().unwrap()[0]["roleRef"]["name"] = json!("kubeflow-pipelines-view");
    let found = of(&snapshot);
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn other_namespace_has_no_findings() {
    assert!(of(&Snapshot { tenant: None, ..healthy() }).is_empty());
}

/// Checks the finding whose line begins like this, and a part of its next step.
fn assert_found(cases: &[(Change, &str, &str)]) {
    for (change, line, next) in cases {
        let mut snapshot = healthy();
        change(&mut snapshot);
        let found = of(&snapshot);
        let finding = found.iter().find(|finding| finding.line().starts_with(line));
        let finding = finding.unwrap_or_else(|| panic!("{line}: {found:#?}"));
        assert!(finding.remediation.as_deref().unwrap_or_default().contains(next), "{finding:?}");
    }
}

#[test]
fn missing_tenant_object_has_its_cause() {
    assert_found(&[
        (
            |s| label_of(s, "istio-aux.io/mesh", json!("yes")),
            "problem tenancy: namespace team: label istio-aux.io/mesh:",
            "kubectl label namespace team --overwrite",
        ),
        (
            |s| s.namespaces[0]["metadata"]["annotations"] = json!({"istio-aux.io/pipelines-accounts": "A"}),
            "problem tenancy: namespace team: annotation istio-aux.io/pipelines-accounts: \"A\"",
            "kubectl annotate namespace team",
        ),
        (
            |s| s.namespaces[0]["metadata"]["annotations"] = json!({"istio-aux.io/pipelines-role": "A"}),
            "problem tenancy: namespace team: annotation istio-aux.io/pipelines-role: \"A\"",
            "kubectl annotate namespace team --overwrite istio-aux.io/pipelines-role=VALUE",
        ),
        (
            |s| tenant(s).has_role = Some(false),
            "problem tenancy: there is no ClusterRole istio-aux-pipelines",
            "tenancy.enabled=true",
        ),
        (
            |s| s.namespaces[0]["metadata"]["annotations"] = json!({}),
            "info tenancy: namespace team has what its label istio-aux.io/tenancy asks for; no account is bound",
            "kubectl annotate namespace team istio-aux.io/pipelines-accounts=",
        ),
        (
            |s| tenant(s).role_bindings.as_mut().unwrap()[0]["metadata"]["managedFields"] = json!([]),
            "ok tenancy: namespace team has what its label",
            "",
        ),
        (
            |s| tenant(s).role_bindings = Some(vec![role_binding("team", "view", &["default".to_owned()])]),
            "problem tenancy: RoleBinding istio-aux-pipelines in team is not managed by istio-aux; left unchanged",
            "kubectl -n team delete rolebinding istio-aux-pipelines",
        ),
        (
            |s| tenant(s).role_bindings = Some(Vec::new()),
            "problem tenancy: namespace team asks for a binding by istio-aux.io/tenancy, and has none",
            "kubectl -n team get events",
        ),
        (
            |s| tenant(s).role_bindings.as_mut().unwrap()[0]["subjects"] = json!([]),
            "problem tenancy: namespace team asks for a binding by istio-aux.io/tenancy, and has another",
            "kubectl -n team get events says why",
        ),
        (
            |s| tenant(s).pod_default.as_mut().unwrap()["metadata"]["managedFields"] = json!([]),
            "info tenancy: PodDefault access-ml-pipeline in team is not managed by istio-aux; left unchanged",
            "",
        ),
    ]);
}

#[test]
fn each_cause_of_401_and_403_is_found() {
    assert_found(&[
        (
            |s| s.pods.tenants[0].has_token = false,
            "info pipelines-access: pods without a token for Kubeflow Pipelines, which answers them 401: step",
            "create them again",
        ),
        (
            |s| {
                s.pods.tenants[0].has_token = false;
                label_of(s, "istio-aux.io/pipelines-token", json!(null));
            },
            "info pipelines-access: pods without a token",
            "kubectl label namespace team istio-aux.io/pipelines-token=enabled",
        ),
        (
            |s| s.pods.tenants[0].account = "trainer".to_owned(),
            "info pipelines-access: service accounts without rights to Kubeflow Pipelines, which answers them 403: trainer",
            "kubectl annotate namespace team --overwrite istio-aux.io/pipelines-accounts=default,trainer",
        ),
    ]);
}

#[test]
fn each_cause_of_403_in_the_mesh_is_found() {
    assert_found(&[
        (
            |s| s.pods.tenants[0].lacks_proxy = true,
            "info mesh-client: pods without a proxy, and so without an identity: step; services here answer them 403 (AuthorizationPolicy ns-owner-access-istio)",
            "kubectl label namespace team istio-aux.io/injection=enabled istio-aux.io/mesh=run-to-completion",
        ),
        (
            |s| {
                s.pods.tenants[0].lacks_proxy = true;
                tenant(s).peer_authentications =
                    vec![json!({"metadata": {"name": "default"}, "spec": {"mtls": {"mode": "STRICT"}}})];
            },
            "info mesh-client: pods without a proxy, and so without an identity: step; STRICT mutual TLS rejects their connections",
            "kubectl label namespace team",
        ),
        (
            |s| {
                let rule = json!({"when": [{"key": "request.headers[kubeflow-userid]", "values": ["*"]}]});
                tenant(s).policies.push(policy("ns-owner-access-istio-charmed", &rule));
            },
            "problem profile-policy: AuthorizationPolicy team/ns-owner-access-istio-charmed lets every caller of the mesh pass for any user",
            "add to its rule a `from`",
        ),
    ]);
}

#[test]
fn pod_outside_the_mesh_is_no_finding_without_a_policy_or_in_ambient_mode() {
    let changes: [Change; 2] =
        [|s| tenant(s).policies.clear(), |s| label_of(s, "istio.io/dataplane-mode", json!("ambient"))];
    for change in changes {
        let mut snapshot = healthy();
        snapshot.pods.tenants[0].lacks_proxy = true;
        change(&mut snapshot);
        let lines: Vec<_> = of(&snapshot).iter().map(Finding::line).collect();
        assert!(lines.iter().all(|line| !line.contains("mesh-client")), "{lines:?}");
        assert!(
            lines.iter().any(|line| line.starts_with("ok tenancy: namespace team has what its label")),
            "{lines:?}"
        );
    }
}

#[test]
fn policy_with_gateway_or_deny_admits_no_other_caller() {
    let header = json!([{"key": "request.headers[kubeflow-userid]", "values": ["*"]}]);
    let from = json!([{"source": {"principals": ["cluster.local/ns/istio-system/sa/gateway"]}}]);
    assert!(admits_any_caller(&policy("a", &json!({"when": header}))));
    assert!(!admits_any_caller(&policy("a", &json!({"when": header, "from": from}))));
    let owner = json!([{"key": "request.headers[kubeflow-userid]", "values": ["owner@example.com"]}]);
    assert!(!admits_any_caller(&policy("a", &json!({"when": owner}))));
    let mut deny = policy("a", &json!({"when": header}));
    deny["spec"]["action"] = json!("DENY");
    assert!(!admits_any_caller(&deny));
}
