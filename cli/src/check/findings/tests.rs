//! Judges a healthy cluster, and clusters that differ from it in one thing.

use std::time::Duration;

use base64::Engine;
use contract::version::Version;
use inject::Settings;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::json;

use super::super::finding::Severity;
use super::*;
use crate::installation::Webhook;
use crate::pods::Selectors;
use crate::pods::fixtures::{labelled, stuck_pod};

const NOW: i64 = 1_800_000_000;

/// Returns our configuration, with a CA whose validity begins then.
fn configuration(begins: i64, valid_for: Duration) -> Value {
    let mut parameters = CertificateParams::default();
    parameters.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(begins.try_into().unwrap());
    parameters.not_after = parameters.not_before + valid_for;
    let ca = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let bundle = base64::prelude::BASE64_STANDARD.encode(ca);
    let service = json!({"namespace": "istio-aux", "name": "istio-aux"});
    json!({"metadata": {"name": "istio-aux"}, "webhooks": [{"clientConfig": {"caBundle": bundle, "service": service}}]})
}

fn injector(name: &str) -> Value {
    let selector = json!({"matchLabels": {"istio-injection": "enabled"}});
    let webhook = json!({"name": "namespace.sidecar-injector.istio.io", "namespaceSelector": selector});
    json!({"metadata": {"name": name}, "webhooks": [webhook]})
}

fn node(kubelet: &str, kernel: &str) -> Value {
    json!({"metadata": {"name": "node1"}, "status": {"nodeInfo": {"kubeletVersion": kubelet, "kernelVersion": kernel}}})
}

fn slice(ready: usize) -> Value {
    let endpoint = |n| json!({"conditions": {"ready": true}, "targetRef": {"name": format!("istio-aux-{n}")}});
    json!({"endpoints": (0..ready).map(endpoint).collect::<Vec<_>>()})
}

fn healthy() -> Snapshot {
    Snapshot {
        server: Version::parse("1.34"),
        nodes: vec![node("v1.34.4", "6.18.0-amd64")],
        configurations: Some(vec![
            configuration(NOW, Duration::from_hours(8760)),
            injector("istio-sidecar-injector"),
            json!({"metadata": {"name": "zz-istio-aux"}, "webhooks": []}),
        ]),
        has_policy: Some(false),
        endpoints: Some(vec![slice(2)]),
        namespaces: vec![labelled("team", &json!({"istio-aux.io/injection": "enabled", "istio-injection": "enabled"}))],
        ..Snapshot::default()
    }
}

fn found(snapshot: &Snapshot) -> Vec<Finding> {
    of(snapshot, NOW)
}

#[test]
fn healthy_cluster_has_only_ok_findings() {
    let found = found(&healthy());
    assert!(found.iter().all(|finding| finding.severity == Severity::Ok), "{found:#?}");
    assert!(found.len() >= 5, "{found:#?}");
}

/// Changes a healthy cluster.
type Change = fn(&mut Snapshot);

/// Checks that a changed cluster has a finding whose line begins like this.
fn assert_found(cases: &[(Change, &str)]) {
    for (change, line) in cases {
        let mut snapshot = healthy();
        change(&mut snapshot);
        let found = found(&snapshot);
        assert!(found.iter().any(|finding| finding.line().starts_with(line)), "{line}: {found:#?}");
    }
}

fn ignore_failures(snapshot: &mut Snapshot) {
    let webhook = json!({"name": "require-shim.pod.istio-aux.io", "failurePolicy": "Ignore"});
    snapshot.configurations.as_mut().unwrap()[2]["webhooks"] = json!([webhook]);
}

fn ours(snapshot: &mut Snapshot) -> &mut Value {
    &mut snapshot.configurations.as_mut().unwrap()[0]
}

#[test]
fn old_servers_and_kernels_are_found() {
    assert_found(&[
        (|s| s.server = None, "info server-version: the API server reports a version that cannot"),
        (|s| s.server = Version::parse("1.28"), "info server-version: Kubernetes 1.28 has no native sidecars"),
        (|s| s.nodes = vec![node("v1.28.1", "6.18")], "problem kubelet-version: nodes older than Kubernetes 1.29"),
        (|s| s.nodes = vec![node("v1.34.1", "6.8.0-45-generic")], "info kernel-version: Linux before 6.15"),
    ]);
}

#[test]
fn policy_that_cannot_be_read_is_not_called_absent() {
    let mut snapshot = healthy();
    snapshot.configurations = Some(vec![injector("istio")]);
    snapshot.has_policy = None;
    let found = found(&snapshot);
    assert!(found.iter().all(|finding| finding.id != Id::Installation), "{found:#?}");
}

#[test]
fn missing_or_untrusted_installation_is_a_problem() {
    assert_found(&[
        (|s| s.configurations = Some(vec![injector("istio")]), "problem installation: istio-aux is not installed"),
        (
            |s| {
                s.has_policy = Some(true);
                s.configurations = Some(vec![injector("istio")]);
            },
            "ok installation: the API server decides by itself",
        ),
        (|s| s.has_policy = Some(true), "info installation: webhook and policy are both installed"),
        (
            |s| drop(s.configurations.as_mut().unwrap().pop()),
            "problem installation: there is no MutatingWebhookConfiguration zz-istio-aux",
        ),
        (ignore_failures, "info installation: failurePolicy is Ignore"),
        (
            |s| {
                ignore_failures(s);
                s.endpoints = Some(vec![slice(0)]);
            },
            "problem webhook-replicas: no replica of the webhook is ready: opted-in pods that would not complete are admitted",
        ),
        (
            |s| {
                let version = Some("0.0.1".to_owned());
                s.webhooks.push(Webhook { image: "webhook:1".to_owned(), version, settings: None });
            },
            "info installation: the webhook has version 0.0.1, and this program",
        ),
        (
            |s| ours(s)["webhooks"][0]["clientConfig"]["caBundle"] = json!("Cg=="),
            "problem ca-bundle: the API server has no CA (caBundle)",
        ),
        (
            // 50 minutes of the CA's hour are over.
            |s| *ours(s) = configuration(NOW - 3000, Duration::from_hours(1)),
            "problem ca-bundle: the CA that the API server trusts expires in 10 minutes",
        ),
        (
            |s| *ours(s) = configuration(NOW, Duration::ZERO),
            "problem ca-bundle: the CA that the API server trusts has expired",
        ),
        (|s| s.endpoints = Some(vec![slice(0)]), "problem webhook-replicas: no replica of the webhook"),
        (|s| s.endpoints = Some(vec![slice(1), slice(1)]), "info webhook-replicas: only one replica"),
        (
            |s| {
                s.configurations.as_mut().unwrap().remove(1);
            },
            "problem istio-injector: there is no sidecar injector",
        ),
        (
            |s| s.configurations.as_mut().unwrap().push(injector("zzz-injector")),
            "problem istio-injector: called after zz-istio-aux, so their pods get no shim: zzz-injector",
        ),
        (
            |s| s.configurations.as_mut().unwrap().push(injector("a-injector")),
            "info istio-injector: called before istio-aux",
        ),
    ]);
}

#[test]
fn revision_of_an_injector_is_fine() {
    let labels = json!({"istio-aux.io/injection": "enabled", "istio.io/rev": "stable"});
    let mut snapshot = Snapshot { namespaces: vec![labelled("team", &labels)], ..healthy() };
    let selector = json!({"matchExpressions": [{"key": "istio.io/rev", "operator": "In", "values": ["stable"]}]});
    snapshot.configurations.as_mut().unwrap()[1]["webhooks"][0]["namespaceSelector"] = selector;
    assert!(found(&snapshot).iter().all(|finding| finding.id != Id::NamespaceMesh));
}

#[test]
fn namespace_that_the_installed_selectors_select_is_opted_in() {
    let mut snapshot = healthy();
    let selector = json!({"matchLabels": {"app.kubernetes.io/part-of": "kubeflow-profile"}});
    let webhook = json!({"name": "add-shim.selector.istio-aux.io", "namespaceSelector": selector});
    snapshot.configurations.as_mut().unwrap()[2]["webhooks"] = json!([webhook]);
    let labels = json!({"app.kubernetes.io/part-of": "kubeflow-profile", "istio-injection": "enabled"});
    snapshot.namespaces.push(labelled("profile", &labels));
    let found = found(&snapshot);
    let lines: Vec<_> = found.iter().filter(|one| one.id == Id::NamespaceOptIn).map(Finding::line).collect();
    let outside =
        "problem namespace-opt-in: namespace team is not opted in: no selector of the installed webhook selects it";
    assert!(lines.len() == 2 && lines[0].starts_with(outside), "{lines:?}");
    assert_eq!(lines[1], "ok namespace-opt-in: namespaces opted in: profile");
}

#[test]
fn ca_bundle_has_the_next_step_of_who_writes_it() {
    let next = |change: Change| {
        let mut snapshot = healthy();
        ours(&mut snapshot)["webhooks"][0]["clientConfig"]["caBundle"] = json!(null);
        ours(&mut snapshot)["webhooks"][0]["clientConfig"]["service"]["name"] = json!("aux-webhook");
        change(&mut snapshot);
        let found = found(&snapshot).into_iter().find(|finding| finding.id == Id::CaBundle);
        found.unwrap().remediation.unwrap()
    };
    assert!(next(|_| {}).ends_with("kubectl -n istio-aux logs deployment/aux-webhook"));
    let by_cert_manager: Change =
        |s| ours(s)["metadata"]["annotations"] = json!({"cert-manager.io/inject-ca-from": "istio-aux/a"});
    assert!(next(by_cert_manager).starts_with("look at cert-manager's Certificate istio-aux/a, "));
}

#[test]
fn invalid_namespace_labels_are_found() {
    assert_found(&[
        (
            |s| s.namespaces = vec![labelled("team", &json!({"istio-aux.io/injection": "true"}))],
            "problem namespace-label: namespace team is not opted in: its label has the invalid value \"true\"",
        ),
        (
            |s| s.namespaces = vec![labelled("team", &json!({"istio-aux.io/injection": "enabled"}))],
            "info namespace-mesh: namespaces opted in that Istio's injector does not select",
        ),
        (
            |s| {
                let labels = json!({"istio-aux.io/injection": "enabled", "istio.io/rev": "1-26"});
                s.namespaces = vec![labelled("team", &labels)];
            },
            "problem namespace-mesh: namespace team asks for Istio's revision 1-26, which no injector has",
        ),
        (
            |s| s.namespaces = vec![labelled("team", &json!({}))],
            "info namespace-opt-in: namespace team is not opted in",
        ),
        (
            |s| {
                s.namespaces.clear();
                s.missing_namespace = Some("nope".to_owned());
            },
            "problem namespace-opt-in: there is no namespace nope",
        ),
        (
            |s| s.unreadable.push("cannot read nodes: forbidden".to_owned()),
            "info unreadable: cannot read nodes: forbidden",
        ),
    ]);
    let misspelt = labelled("team", &json!({"istio-aux.io/injection": "true"}));
    let named_once = found(&Snapshot { namespaces: vec![misspelt], ..healthy() });
    let names_it = |finding: &&Finding| matches!(finding.id, Id::NamespaceOptIn | Id::NamespaceLabel);
    assert_eq!(named_once.iter().filter(names_it).count(), 1, "{named_once:#?}");
    let unread = found(&Snapshot { namespaces: Vec::new(), ..healthy() });
    assert!(unread.iter().all(|finding| finding.id != Id::NamespaceOptIn), "{unread:#?}");
}

#[test]
fn native_sidecars_of_istiod_are_reported() {
    fn set(snapshot: &mut Snapshot, env: &Value) {
        let spec = json!({"template": {"spec": {"containers": [{"env": env}]}}});
        snapshot.istiods = vec![json!({"metadata": {"namespace": "istio-system", "name": "istiod"}, "spec": spec})];
    }
    const VARIABLE: &str = "ENABLE_NATIVE_SIDECARS";
    assert_found(&[
        (
            |s| set(s, &json!([{"name": VARIABLE, "value": "true"}])),
            "info native-sidecars: istio-system/istiod makes its proxies native sidecars",
        ),
        (
            |s| set(s, &json!([{"name": VARIABLE, "value": "false"}])),
            "ok native-sidecars: istio-system/istiod makes its proxies ordinary containers",
        ),
        (|s| set(s, &json!([])), "ok native-sidecars: istio-system/istiod decides by itself"),
        (
            |s| set(s, &json!([{"name": VARIABLE, "value": "auto"}])),
            "ok native-sidecars: istio-system/istiod decides by itself",
        ),
    ]);
}

#[test]
fn stuck_pod_has_the_command_to_finish_it() {
    let ended = 1_795_255_200; // 2026-11-21T10:00:00Z
    let mut snapshot = healthy();
    snapshot.pods.add(&stuck_pod(), None);
    let found = |now| of(&snapshot, now).into_iter().find(|finding| finding.id == Id::StuckPod);
    assert_eq!(found(ended + 14), None, "a pod gets a moment to end by itself");
    let stuck = found(ended + 15).unwrap();
    assert_eq!(
        stuck.message,
        "pod team/hello is stuck: its containers ended at 2026-11-21T10:00:00Z, and only istio-proxy runs"
    );
    assert_eq!(stuck.remediation.as_deref(), Some("istio-aux finish -n team hello"));
}

#[test]
fn pods_without_the_shims_image_are_a_problem() {
    let mut snapshot = healthy();
    for name in ["a", "b"] {
        let mut pod = labelled(name, &json!({}));
        pod["metadata"]["namespace"] = json!("team");
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
        pod["status"] = json!({"initContainerStatuses": [{"name": "aux-shim", "image": "r/shim:1", "state": waiting}]});
        snapshot.pods.add(&pod, None);
    }
    let lines: Vec<String> = found(&snapshot).iter().map(Finding::line).collect();
    let line = "problem shim-image: pods wait for the shim's image r/shim:1 (ImagePullBackOff): team/a, team/b";
    assert!(lines.iter().any(|found| found == line), "{lines:#?}");
}

#[test]
fn each_pods_decision_is_shown() {
    let mut decided = stuck_pod();
    decided["metadata"]["annotations"]["istio-aux.io/status"] = json!(r#"{"mode": "native", "reason": "because"}"#);
    let mut snapshot = healthy();
    let namespace = snapshot.namespaces[0].clone();
    for pod in [stuck_pod(), decided] {
        snapshot.pods.add(&pod, Some((&namespace, &Selectors::default(), &Settings::new("shim:1"))));
    }
    let lines: Vec<String> = found(&snapshot).iter().map(Finding::line).collect();
    let decisions: Vec<_> = lines.iter().filter(|line| line.contains(" pod-decision: ")).collect();
    assert_eq!(decisions.len(), 2, "{lines:#?}");
    let unchanged = "info pod-decision: pod hello (Running): not changed by istio-aux: it was created";
    assert!(decisions[0].starts_with(unchanged), "{decisions:?}");
    assert_eq!(decisions[1], "ok pod-decision: pod hello (Running): mode native: because");
}
