//! What is found in which cluster: a cluster where all is well, and one thing after the other that is not.

use super::*;
use crate::certificates::pair::issue;
use base64::Engine;
use serde_json::json;
use std::time::Duration;

const NOW: i64 = 1_800_000_000;

fn configuration_trusting(valid_for: Duration) -> Value {
    configuration_since(NOW, valid_for)
}

fn configuration_since(begins: i64, valid_for: Duration) -> Value {
    let ca = issue("istio-aux.istio-aux.svc", begins, valid_for).unwrap().ca;
    let bundle = base64::prelude::BASE64_STANDARD.encode(ca);
    let service = json!({"namespace": "istio-aux", "name": "istio-aux"});
    json!({"metadata": {"name": "istio-aux"}, "webhooks": [{"clientConfig": {"caBundle": bundle, "service": service}}]})
}

fn injector(name: &str) -> Value {
    json!({"metadata": {"name": name}, "webhooks": [{"name": "rev.namespace.sidecar-injector.istio.io"}]})
}

fn node(kubelet: &str, kernel: &str) -> Value {
    json!({"metadata": {"name": "node1"}, "status": {"nodeInfo": {"kubeletVersion": kubelet, "kernelVersion": kernel}}})
}

fn namespace(labels: &Value) -> Value {
    json!({"metadata": {"name": "team", "labels": labels}})
}

fn slice(ready: usize) -> Value {
    let endpoint = |n| json!({"conditions": {"ready": true}, "targetRef": {"name": format!("istio-aux-{n}")}});
    json!({"endpoints": (0..ready).map(endpoint).collect::<Vec<_>>()})
}

/// A cluster where all is well.
fn well() -> Snapshot {
    Snapshot {
        server: Version::parse("1.34"),
        nodes: vec![node("v1.34.4", "6.18.0-amd64")],
        configurations: Some(vec![
            configuration_trusting(Duration::from_hours(8760)),
            injector("istio-sidecar-injector"),
        ]),
        endpoints: Some(vec![slice(2)]),
        namespaces: vec![namespace(&json!({"istio-aux.io/injection": "enabled", "istio-injection": "enabled"}))],
        ..Snapshot::default()
    }
}

fn found(snapshot: &Snapshot) -> Vec<Finding> {
    of(snapshot, None, &Settings::new("shim:1"), NOW)
}

#[test]
fn where_all_is_well_nothing_is_to_be_mended() {
    let found = found(&well());
    assert!(found.iter().all(|finding| finding.level == Level::Ok), "{found:#?}");
    assert!(found.len() >= 5, "{found:#?}");
}

#[test]
fn each_thing_that_is_wrong_is_found() {
    type Spoil = fn(&mut Snapshot);
    let cases: [(Spoil, Level, &str); 17] = [
        (
            |s| {
                s.has_policy = true;
                s.configurations = Some(vec![injector("istio")]);
            },
            Level::Ok,
            "the API server decides by itself",
        ),
        (|s| s.has_policy = true, Level::Note, "webhook and policy are both installed"),
        (|s| s.server = Version::parse("1.28"), Level::Ok, "Kubernetes 1.28 has no native sidecars"),
        (|s| s.nodes = vec![node("v1.28.1", "6.18")], Level::Problem, "nodes older than Kubernetes 1.29"),
        (|s| s.nodes = vec![node("v1.34.1", "6.8.0-45-generic")], Level::Note, "Linux before 6.15"),
        (|s| s.configurations = Some(vec![injector("istio")]), Level::Problem, "istio-aux is not installed"),
        (
            |s| s.configurations.as_mut().unwrap()[0]["webhooks"][0]["clientConfig"]["caBundle"] = json!("Cg=="),
            Level::Problem,
            "the API server has no authority (caBundle)",
        ),
        (
            // The cluster's clock is 50 minutes after the certificate's beginning.
            |s| s.configurations.as_mut().unwrap()[0] = configuration_since(NOW - 3000, Duration::from_hours(1)),
            Level::Problem,
            "the authority that the API server trusts expires in 10 minutes",
        ),
        (
            |s| s.configurations.as_mut().unwrap()[0] = configuration_trusting(Duration::ZERO),
            Level::Problem,
            "the authority that the API server trusts has expired",
        ),
        (|s| s.endpoints = Some(vec![slice(0)]), Level::Problem, "no replica of the webhook is ready"),
        (|s| s.endpoints = Some(vec![slice(1), slice(1)]), Level::Note, "only one replica"),
        (
            |s| {
                s.configurations.as_mut().unwrap().pop();
            },
            Level::Problem,
            "there is no sidecar injector",
        ),
        (|s| s.configurations.as_mut().unwrap().push(injector("a-injector")), Level::Note, "called before istio-aux"),
        (
            |s| s.namespaces = vec![namespace(&json!({"istio-aux.io/injection": "true"}))],
            Level::Problem,
            "namespace team is not opted in: its label says \"true\"",
        ),
        (
            |s| s.namespaces = vec![namespace(&json!({"istio-aux.io/injection": "enabled"}))],
            Level::Note,
            "namespaces opted in that have no label of Istio's",
        ),
        (|s| s.namespaces = vec![namespace(&json!({}))], Level::Note, "namespace team is not opted in"),
        (|s| s.unread.push("cannot read nodes: forbidden".to_owned()), Level::Note, "cannot read nodes: forbidden"),
    ];
    for (spoil, level, what) in cases {
        let mut snapshot = well();
        spoil(&mut snapshot);
        let found = found(&snapshot);
        let finding = found.iter().find(|finding| finding.what.starts_with(what));
        assert_eq!(finding.map(|finding| finding.level), Some(level), "{what}: {found:#?}");
    }
}

#[test]
fn istios_own_native_sidecars_are_told_of() {
    let istiod = |env: Value| {
        json!({"metadata": {"namespace": "istio-system", "name": "istiod"},
        "spec": {"template": {"spec": {"containers": [{"env": env}]}}}})
    };
    let cases = [
        (json!([{"name": "ENABLE_NATIVE_SIDECARS", "value": "true"}]), Level::Note, "such pods need no shim"),
        (json!([{"name": "ENABLE_NATIVE_SIDECARS", "value": "false"}]), Level::Ok, "ordinary containers"),
        (json!([]), Level::Ok, "decides by itself"),
    ];
    for (env, level, what) in cases {
        let found = found(&Snapshot { istiods: vec![istiod(env)], ..well() });
        assert!(
            found.iter().any(|finding| finding.level == level && finding.what.contains(what)),
            "{what}: {found:#?}"
        );
    }
}

#[test]
fn stuck_pods_come_with_the_command_that_ends_them() {
    let pod = json!({
        "metadata": {"namespace": "team", "name": "hello"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "istio-proxy"}, {"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-11-21T10:00:00Z"}}},
            {"name": "istio-proxy", "state": {"running": {}}},
        ]},
    });
    let ended = 1_795_255_200; // 2026-11-21T10:00:00Z
    let found = |now| of(&Snapshot { pods: vec![pod.clone()], ..well() }, None, &Settings::new("shim:1"), now);
    let problems = |now| found(now).into_iter().filter(|finding| finding.what.contains("is stuck")).count();
    assert_eq!((problems(ended + 14), problems(ended + 15)), (0, 1), "a pod that has just ended is given a moment");
    let found = found(ended + 15);
    let stuck = found.iter().find(|finding| finding.what.contains("is stuck")).unwrap();
    assert_eq!(
        stuck.what,
        "pod team/hello is stuck: its payload ended at 2026-11-21T10:00:00Z, and only istio-proxy runs"
    );
    assert_eq!(stuck.next.as_deref(), Some("istio-aux finish -n team hello"));
}

#[test]
fn for_one_namespace_each_pod_says_what_it_has_or_would_get() {
    let like = |annotations: Value| {
        json!({"metadata": {"name": "hello", "annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "istio-proxy"}, {"name": "main"}]}})
    };
    let status = json!({"istio-aux.io/status": "{\"mode\": \"native\", \"why\": \"because\"}"});
    let snapshot = Snapshot { pods: vec![like(json!({})), like(status)], ..well() };
    let found = of(&snapshot, Some("team"), &Settings::new("shim:1"), NOW);
    let lines: Vec<&str> =
        found.iter().map(|finding| finding.what.as_str()).filter(|line| line.starts_with("pod hello")).collect();
    assert_eq!(
        lines,
        [
            "pod hello: one like it would get mode native: istio-proxy is an ordinary container in a pod that is to complete",
            "pod hello has mode native: because",
        ]
    );
}
