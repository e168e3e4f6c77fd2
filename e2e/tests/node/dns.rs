//! DNS that Istio captures: pilot-agent answers in place of the cluster's.

use std::net::{IpAddr, UdpSocket};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use e2e::clients::{asks_status, greets, until_said};
use e2e::cluster::{MESH, until_istiod_has};
use e2e::kubectl::kubectl;
use e2e::manifests::{GREETING, job, pod_spec, shell};
use e2e::node::ProxyProcess;
use e2e::{Namespace, scenario};
use serde_json::json;

use crate::confinement::{living_job, sleeper};
use crate::failures::living_pods;
use crate::{beside, client_job, ended};

/// Is known to the mesh alone, as the server `web`.
pub(crate) const MESH_HOST: &str = "only.mesh.example";

/// The code of an answer about a name that is known.
const NO_ERROR: u8 = 0;
/// Is a name server of one pod.
const NAME_SERVER: &str = "192.0.2.53";

/// Has the mesh know the host by an address of the family that pods have.
async fn add_host(ns: &Namespace) {
    let families = ["-n", "default", "get", "service", "kubernetes", "--output=jsonpath={.spec.ipFamilies}"];
    let is_ipv6 = !kubectl(&families).contains("IPv4");
    let address = if is_ipv6 { "2001:2::f0f0" } else { "240.240.240.240" };
    ns.create_object(json!({
        "apiVersion": "networking.istio.io/v1beta1", "kind": "ServiceEntry", "metadata": {"name": "only"},
        "spec": {
            "hosts": [MESH_HOST], "addresses": [address], "location": "MESH_INTERNAL", "resolution": "STATIC",
            "ports": [{"number": 80, "name": "http", "protocol": "HTTP", "targetPort": 8080}],
            "workloadSelector": {"labels": {"app": "web"}},
        },
    }))
    .await;
}

async fn capture(ns: &Namespace) {
    ns.create_object(json!({
        "apiVersion": "networking.istio.io/v1beta1", "kind": "ProxyConfig", "metadata": {"name": "dns"},
        "spec": {"environmentVariables": {"ISTIO_META_DNS_CAPTURE": "true"}},
    }))
    .await;
    until_istiod_has(ns, "ProxyConfig", &json!({"ISTIO_META_DNS_CAPTURE": "true"})).await;
}

/// Has the mesh know the host, and pods ask the mesh.
pub(crate) async fn capture_with_host(ns: &Namespace) {
    add_host(ns).await;
    capture(ns).await;
}

/// Asks a name server for that host by the one socket, again and again, as Netty's resolver does. Each query is sent up to three
/// times. Returns what ends it, and returns the number of answers; panics where there was none.
pub(crate) fn ask_by(socket: UdpSocket, server: IpAddr) -> impl FnOnce() -> usize {
    let (end, ended) = mpsc::channel::<()>();
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("it is not zero");
    let asking = thread::spawn(move || {
        let (mut answers, mut ids) = (0, (0..=u16::MAX).cycle());
        while ended.try_recv() == Err(TryRecvError::Empty) {
            let said = ids.by_ref().take(3).find_map(|id| answer(&socket, server, id));
            assert_eq!(said, Some(NO_ERROR), "after {answers} answers");
            answers += 1;
            thread::sleep(Duration::from_millis(200));
        }
        answers
    });
    move || {
        drop(end);
        asking.join().expect("each query is answered")
    }
}

/// Sends one query with an identifier, and returns its answer's code.
fn answer(socket: &UdpSocket, server: IpAddr, id: u16) -> Option<u8> {
    let [high, low] = id.to_be_bytes();
    // The identifier, the wish for recursion, one question; and its type A and class IN (RFC 1035).
    let mut query = vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in MESH_HOST.split('.') {
        query.push(u8::try_from(label.len()).expect("it is short"));
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let server = match server {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    socket.send_to(&query, (server, 53)).expect("it is sent");
    let mut said = [0; 512];
    loop {
        let length = socket.recv(&mut said).ok()?;
        // Others are answers to earlier ones.
        if said[..length].starts_with(&[high, low]) {
            return said[..length].get(3).map(|flags| flags & 0xf);
        }
    }
}

#[tokio::test]
async fn captured_dns_passes_the_proxy() {
    let ns = &scenario("node-dns-capture", &[MESH]).await;
    living_pods(ns).await;
    add_host(ns).await;
    let asks = |name: &str, script: &str| beside(client_job(name, &pod_spec("Never", &[shell("main", script)])));
    let (_, unknown) = ended(ns, asks("control", &asks_status(MESH_HOST))).await;
    assert_eq!(unknown, "000", "the cluster's DNS does not know it");

    capture(ns).await;
    let (_, said) = ended(ns, asks("asks", &until_said(&greets(MESH_HOST), "*200"))).await;
    assert_eq!(said, format!("{GREETING}\n 200"));
    let mut spec = sleeper();
    spec["dnsConfig"] = json!({"nameservers": [NAME_SERVER]});
    let beside = living_job(ns, beside(client_job("beside", &spec))).await;
    let inside = living_job(ns, job("inside", &spec)).await;
    let [pilot_agent, _] = ProxyProcess::of(&beside);
    let rules = pilot_agent.rules();
    assert_eq!(rules, ProxyProcess::of_sidecar(&inside).rules());
    let is_captured = |rule: &String| rule.contains(NAME_SERVER) && rule.ends_with("--to-ports 15053");
    assert!(rules.iter().any(is_captured), "{rules:?}");
}
