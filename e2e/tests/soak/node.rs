//! Many pods with proxies beside them: they come and go while the agent is killed and containerd restarted, start all at once, or live
//! while their proxies are upgraded. None is stuck, no proxy is left on the node, and no connection is refused or broken. And pods
//! that live longer than certificates.

use std::fs;
use std::iter::repeat;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use contract::names::NODE_RUNTIME_CLASS;
use e2e::clients::asks_status;
use e2e::cluster::{NODE_PROXY, restart};
use e2e::command::{in_background, run};
use e2e::echo::{self, EchoClient};
use e2e::kubectl::{kubectl, wait_for_rollout};
use e2e::manifests::{deployment, job, pod, pod_spec, shell, streaming_server, with_memory};
use e2e::node::{self, NextImage, Prometheus, Restored, WithMetrics, ended, kill_agent};
use e2e::raised_limit::RaisedLimit;
use e2e::{Namespace, PodView, has_condition, scenario};
use futures::{StreamExt, stream};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::sleep;

const PODS: u32 = 200;
const AT_A_TIME: usize = 12;
const LIMIT: Duration = Duration::from_mins(15);
const BETWEEN_DISTURBANCES: Duration = Duration::from_secs(15);

/// Returns numbers that look random, the same in each run.
fn scattered(number: u32) -> u32 {
    number.wrapping_mul(2_654_435_761) >> 16
}

/// Creates a pod, and deletes it after its end, or, one of two, after some seconds.
async fn come_and_go(ns: &Namespace, number: u32, created: &AtomicU32, lost: &AtomicU32) {
    let name = format!("pod-{number}");
    let chance = scattered(number);
    let main = shell("main", &format!("sleep {}", chance % 4));
    let pod = ns.create_object(pod(&name, &pod_spec("Never", &[main]))).await;
    assert_eq!(pod["spec"]["runtimeClassName"], NODE_RUNTIME_CLASS, "{name}");
    created.fetch_add(1, Ordering::Relaxed);
    if chance & 16 == 0 {
        let ended = async || PodView(&ns.pod(&name).await).final_phase();
        let phase = ns.until_within(LIMIT, &format!("the end of {name}"), ended).await;
        if phase == "Failed" {
            // A restart of containerd loses a container that starts meanwhile, in any pod.
            let pod = ns.pod(&name).await;
            assert!(PodView(&pod).was_lost("main"), "{}", ns.describe_pod(&pod).await);
            lost.fetch_add(1, Ordering::Relaxed);
        }
    } else {
        sleep(Duration::from_millis(u64::from(chance % 8000))).await;
    }
    ns.delete_pod(&name).await;
    ns.until_within(LIMIT, &format!("{name} to go"), async || (!ns.has_pod(&name).await).then_some(())).await;
}

/// Kills the agent or restarts containerd until all pods are created. Returns how often, and when the last time was over.
async fn disturb(created: &AtomicU32) -> (u32, Instant) {
    let (mut count, mut since) = (0, Instant::now());
    loop {
        sleep(BETWEEN_DISTURBANCES).await;
        if created.load(Ordering::Relaxed) == PODS {
            return (count, since);
        }
        let disturbance = if scattered(count).is_multiple_of(2) { kill_agent } else { || restart("containerd") };
        in_background(disturbance).await;
        (count, since) = (count + 1, Instant::now());
    }
}

#[tokio::test]
async fn disturbed_agent_leaves_no_stuck_pod_and_no_proxy() {
    let ns = &scenario("node-load", &[NODE_PROXY]).await;
    let (began, created, lost) = (Instant::now(), AtomicU32::new(0), AtomicU32::new(0));
    let pods = stream::iter(0..PODS).map(|number| come_and_go(ns, number, &created, &lost));
    let pods = pods.buffer_unordered(AT_A_TIME).collect::<Vec<()>>();
    let (_, (count, since)) = tokio::join!(pods, disturb(&created));
    println!(
        "{PODS} pods in {:?}, {} lost by containerd, {count} disturbances; all were gone {:?} after the last",
        began.elapsed(),
        lost.load(Ordering::Relaxed),
        since.elapsed()
    );
    assert!(count >= 4, "only {count} disturbances");
    node::until_no_proxies(ns).await;
}

/// Returns how many lines of the agent's log have this text.
fn said(text: &str) -> usize {
    node::agent_log().lines().filter(|line| line.contains(text)).count()
}

#[tokio::test]
async fn two_hundred_starts_at_once_are_each_made_once() {
    let ns = &scenario("node-at-once", &[NODE_PROXY]).await;
    // Pods of the scenario before take the cores until they are gone.
    ns.until_within(LIMIT, "a node without proxies", async || node::proxies().is_empty().then_some(())).await;
    let events = ["event=Add from=Absent", "event=Started", "event=StartFailed"];
    let before = events.map(said);
    let mut all = job("all", &pod_spec("Never", &[shell("main", "true")]));
    for field in ["parallelism", "completions"] {
        all["spec"][field] = json!(PODS);
    }
    let began = Instant::now();
    ns.create_object(all.clone()).await;
    ns.until_within(LIMIT, "the Job's completion", async || {
        has_condition(&ns.get(&all).await, "Complete").then_some(())
    })
    .await;
    println!("{PODS} pods that were created at once had ended after {:?}", began.elapsed());
    let [wanted, started, failed] = std::array::from_fn(|index| said(events[index]) - before[index]);
    assert_eq!((wanted, started, failed), (PODS as usize, PODS as usize, 0));
    ns.delete(&all).await;
    ns.until_within(LIMIT, "the node as it was", async || node::proxies().is_empty().then_some(())).await;
}

/// How many pods live, half of them servers.
const LIVING: usize = 110;
/// How many of the clients have streams.
const ECHOING: usize = 10;
/// How many of the clients ask for one response after the other.
const ASKING: usize = LIVING / 2 - ECHOING;
/// How often the proxies of all are upgraded.
const UPGRADES: usize = 10;
/// A response that takes five seconds.
const STREAM: &str = r"#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
for _ in 1 2 3 4 5; do date; sleep 1; done
echo whole
";
/// Asks for one after the other, each by a new connection, and keeps how each ended. It knows the Service's address, since DNS is
/// not what is tried.
const CLIENT: &str = r#"
ask() { curl -sS --max-time 60 -H 'Host: web' -o /memory/stream -w 'began %{time_starttransfer} ended %{time_total}' "$@"; }
until ask -f "http://$WEB_SERVICE_HOST/"; do sleep 0.2; done
while sleep 0; do
  times=$(ask "http://$WEB_SERVICE_HOST/cgi-bin/stream" 2>/memory/error)
  echo "$? $(tail -n 1 /memory/stream) $(date +%T) $times $(cat /memory/error)" >>/memory/ends
done"#;

#[tokio::test]
async fn hundreds_of_short_pods_are_counted_whole() {
    let ns = &scenario("node-counted", &[NODE_PROXY]).await;
    let began = Instant::now();
    let metrics = WithMetrics::begin(ended::COUNTERS);
    let prometheus = Prometheus::scraping(&metrics);
    let _next = ended::requests_are_counted(&metrics, ns, 300, 12, LIMIT).await;
    println!("3,000 requests of 300 pods were counted in {:?}", began.elapsed());
    for (workload, requests) in [("short", 3_000), ("web", 3_010)] {
        let series = format!("{}{{namespace=\"{}\",workload=\"{workload}\"}}", ended::METRIC, ns.name());
        let is_scraped = async || (prometheus.value(&series)? == requests.to_string()).then_some(());
        ns.until(&format!("{requests} of {series}"), is_scraped).await;
        // Prometheus extrapolates from the last scrape to now.
        let increase = prometheus.value(&format!("floor(increase({series}[1h]))")).and_then(|value| value.parse().ok());
        assert!(increase.is_some_and(|increase: u32| (requests..requests + 600).contains(&increase)), "{increase:?}");
    }
}

#[tokio::test]
async fn thousand_upgrades_refuse_and_break_no_connection() {
    let _limits = [RaisedLimit::of_waiting_packets(), RaisedLimit::of_neighbours()];
    let ns = &scenario("node-upgrades", &[NODE_PROXY]).await;
    let client = deployment("client", &with_memory(pod_spec("Always", &[shell("main", CLIENT)])));
    let asked = streaming_server(STREAM).into_iter().chain([client]);
    let echoing = echo::server().into_iter().chain([echo::client("1")]);
    for (mut object, replicas) in asked.zip(repeat(ASKING)).chain(echoing.zip(repeat(ECHOING))) {
        if object["kind"] == "Deployment" {
            object["spec"]["replicas"] = json!(replicas);
        }
        ns.create_object(object).await;
    }
    ns.until_within(LIMIT, "all pods to be ready", async || {
        let pods = ns.pods_with("app").await;
        (pods.iter().filter(|pod| PodView(pod).is_ready("main")).count() == LIVING).then_some(())
    })
    .await;
    let echo_clients = ns.pods_with("app=echo-client").await;
    let echo_clients: Vec<_> = echo_clients.iter().map(|pod| EchoClient { ns, pod: pod.name_any() }).collect();
    let (began, first) = (Instant::now(), node::proxy_image());
    let mut next = None;
    for round in 1..=UPGRADES {
        for client in &echo_clients {
            client.until_echoed(2).await;
        }
        // Dropped, it has the first image installed again.
        next = if next.is_none() { Some(NextImage::install()) } else { None };
        let wanted = next.as_ref().map_or(&first, |next: &NextImage| &next.name);
        node::until_upgraded(ns, LIVING, wanted, LIMIT).await;
        for client in &echo_clients {
            client.until_echoed(2).await;
            client.end().await;
        }
        node::until_all_serve(ns, LIVING, wanted, LIMIT).await;
        echo_clients.iter().for_each(EchoClient::begin_again);
        println!("{round} of {UPGRADES} upgrades of all after {:?}", began.elapsed());
    }
    let took = began.elapsed();
    let (mut whole, mut broken) = (0, Vec::new());
    for pod in ns.pods_with("app=client").await {
        let name = pod.name_any();
        let ends = ns.exec(&name, "main", &["cat", "/memory/ends"]);
        let (good, bad): (Vec<_>, Vec<_>) =
            ends.lines().map(str::to_owned).partition(|end| end.starts_with("0 whole "));
        whole += good.len();
        broken.extend(bad.into_iter().map(|end| format!("{name}: {end}")));
    }
    println!(
        "{} upgrades in {took:?}; {whole} responses of 5 s were whole, {} were not; {} clients had each a gRPC stream, short gRPC \
         calls, a WebSocket and a TCP connection through each; the agent uses {} bytes",
        LIVING * UPGRADES,
        broken.len(),
        echo_clients.len(),
        node::agent_memory()
    );
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(whole > ASKING * UPGRADES, "streams were open in each upgrade");
    for pod in ns.pods_with("app").await {
        assert_eq!(PodView(&pod).restarts("main"), Some(0), "its probes reach it all the time");
    }
}

/// Creates a server that takes mutual TLS only, and a client, and waits until that is served. A request is a connection of its own from
/// proxy to proxy, too.
async fn served_client(ns: &Namespace) {
    let client = deployment("client", &pod_spec("Always", &[shell("main", "sleep 86400")]));
    ns.create_objects(streaming_server(STREAM).into_iter().chain([client])).await;
    for name in ["web", "client"] {
        wait_for_rollout(ns.name(), &format!("deployment/{name}"));
    }
    until_served(ns).await;
}

fn is_served(ns: &Namespace) -> bool {
    ns.run_script("deployment/client", &asks_status("web")) == "200"
}

async fn until_served(ns: &Namespace) {
    ns.until("a response", async || is_served(ns).then_some(())).await;
}

fn has_expired(certificate: &str) -> bool {
    let output = run("openssl", &["x509", "-noout", "-checkend", "0"], certificate);
    String::from_utf8_lossy(&output.stdout).contains("will expire")
}

#[tokio::test]
async fn renewed_certificates_serve_after_the_first_expired() {
    let ns = &scenario("node-renewal", &[NODE_PROXY]).await;
    // The shortest life that there is, in seconds, and then the chart's.
    let _restored = Restored(|| node::set_value("certificateTtl=86400"));
    node::roll_out("certificateTtl=600");
    served_client(ns).await;
    let first = node::certificates(ns.name());
    let life = Instant::now();
    ns.until_within(LIMIT, "the end of the first certificates", async || has_expired(&first[0]).then_some(())).await;
    println!("the first certificates ended after {:?}", life.elapsed());
    assert!(is_served(ns), "both proxies have certificates that are valid");
    assert!(node::certificates(ns.name()).iter().all(|certificate| !first.contains(certificate)));
}

/// Has istiod make another root: it does where it finds none. Returns it.
async fn another_root(ns: &Namespace) -> String {
    let root = || {
        let words = ["get", "configmap", "istio-ca-root-cert", "--output", r"jsonpath={.data.root-cert\.pem}"];
        kubectl(&[&["-n", ns.name()], &words[..]].concat())
    };
    let before = root();
    kubectl(&["-n", "istio-system", "delete", "secret", "istio-ca-secret"]);
    kubectl(&["-n", "istio-system", "rollout", "restart", "deployment/istiod"]);
    wait_for_rollout("istio-system", "deployment/istiod");
    ns.until("another root", async || Some(root()).filter(|now| *now != before)).await
}

#[tokio::test]
async fn another_root_reaches_the_proxies_of_living_pods() {
    let ns = &scenario("node-root", &[NODE_PROXY]).await;
    served_client(ns).await;
    let root = another_root(ns).await;
    let began = Instant::now();
    let has_root = |directory: String| {
        fs::read_to_string(format!("{directory}/root-cert.pem")).is_ok_and(|it| it.trim() == root.trim())
    };
    ns.until_within(LIMIT, "certificates of the other root", async || {
        let directories = node::certificate_directories(ns.name());
        (directories.len() == 2 && directories.into_iter().all(has_root)).then_some(())
    })
    .await;
    println!("living proxies had certificates of the other root after {:?}", began.elapsed());
    // A proxy that has never known the first root.
    let new = job("new", &pod_spec("Never", &[shell("main", &asks_status("web"))]));
    ns.create_object(new).await;
    ns.until_complete("new").await;
    assert_eq!(ns.logs(&ns.pod_of_job("new").await, "main").await, "200", "the server's proxy has the other root");
    until_served(ns).await;
    for pod in ns.pods_with("app in (web, client)").await {
        assert_eq!(PodView(&pod).restarts("main"), Some(0));
    }
}
