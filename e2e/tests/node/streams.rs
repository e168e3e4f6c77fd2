//! Long gRPC streams, `WebSockets` and TCP connections, and short gRPC calls, through an upgrade of both their proxies.

use e2e::cluster::BESIDE;
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::{deployment, each_by_its_connection, pod_spec, python, service, strict, with_memory};
use e2e::node::{self, NextImage};
use e2e::{Namespace, scenario};
use serde_json::{Value, json};

use crate::upgrade::{exec, until_states};

const PROGRAM: &str = include_str!("streams.py");
/// Names the client's reports, each of which is a file.
const KINDS: [&str; 4] = ["stream", "calls", "websocket", "tcp"];
/// Runs the client, and again once its reports have been removed.
const CLIENT: &str = "while :; do [ -e /memory/stream ] || python3 -c \"$PROGRAM\" client; sleep 1; done";

fn web() -> [Value; 2] {
    let mut serve = python("main", &["python3", "-c", PROGRAM, "server"]);
    serve["readinessProbe"] = json!({"tcpSocket": {"port": 50051}, "periodSeconds": 1});
    let mut service = service("web", 50051, 50051);
    service["spec"]["ports"] = json!([{"name": "grpc", "port": 50051}, {"name": "http-websocket", "port": 8080}, {"name": "tcp", "port": 9000}]);
    [service, deployment("web", &pod_spec("Always", &[serve]))]
}

fn client() -> Value {
    let mut client = python("main", &["sh", "-c", CLIENT]);
    client["env"] = json!([{"name": "PROGRAM", "value": PROGRAM}]);
    deployment("client", &with_memory(pod_spec("Always", &[client])))
}

/// Returns what the client reports: how many were echoed so far, that all were, or an error.
fn reports(ns: &Namespace) -> [String; 4] {
    let script = KINDS.map(|kind| format!("cat /memory/{kind} 2>/dev/null; printf '\\0'; ")).concat();
    let printed = exec(ns, "client", &script);
    let mut reports = printed.split('\0').map(|report| report.trim().to_owned());
    KINDS.map(|_| reports.next().unwrap_or_default())
}

fn is_error(report: &str) -> bool {
    report.contains(" after ")
}

/// Waits until so many more of each kind were echoed.
async fn until_echoed(ns: &Namespace, more: u32) {
    let counts = |reports: &[String; 4]| reports.each_ref().map(|report| report.parse::<u32>().ok());
    let before = counts(&reports(ns)).map(Option::unwrap_or_default);
    ns.until(&format!("{more} more echoes of each kind"), async || {
        let reports = reports(ns);
        let has_more = |(now, before): (Option<u32>, u32)| now.is_some_and(|now| now >= before + more);
        assert!(!reports.iter().any(|report| is_error(report)), "{reports:?}");
        counts(&reports).into_iter().zip(before).all(has_more).then_some(())
    })
    .await;
}

#[tokio::test]
async fn grpc_streams_and_websockets_go_on_through_an_upgrade() {
    let ns = &scenario("node-upgrade-streams", &[BESIDE]).await;
    ns.create_objects([strict()].into_iter().chain(web()).chain(each_by_its_connection("web"))).await;
    wait_for_rollout(ns.name(), "deployment/web");
    ns.create_objects([client()]).await;
    wait_for_rollout(ns.name(), "deployment/client");
    until_echoed(ns, 20).await;

    let before = node::root_of(&node::proxy_image());
    let next = NextImage::install();
    until_states(ns, &node::root_of(&next.name), &["running", "running"]).await;
    until_states(ns, &before, &["draining", "draining"]).await;
    // Ten each second: Envoy's own drain time of 45 s is over by then.
    until_echoed(ns, 500).await;
    until_states(ns, &before, &["draining", "draining"]).await;
    exec(ns, "client", "touch /memory/end");
    let has_ended = |report: &String| report == "all" || is_error(report);
    let have_ended = async || Some(reports(ns)).filter(|all| all.iter().all(has_ended));
    assert_eq!(ns.until("their ends", have_ended).await, ["all"; 4]);
    until_states(ns, &before, &[]).await;

    // The control: a proxy that ends without a next one breaks them.
    exec(ns, "client", "rm /memory/*");
    until_echoed(ns, 20).await;
    node::kill_proxies();
    let broken = ns.until("their ends", have_ended).await;
    assert!(broken.iter().all(|report| is_error(report)), "{broken:?}");
}
