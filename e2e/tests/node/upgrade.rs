//! The upgrade of proxies while their pods live.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use e2e::clients::{asks_status, assert_heard, assert_still_heard};
use e2e::cluster::{MESH, NODE_PROXY};
use e2e::command::{printed, run};
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::{deployment, payload_image, pod_spec, shell, streaming_server, with_memory};
use e2e::node::{self, NextImage, ProxyProcess, Restored};
use e2e::{Namespace, PodView, scenario};
use serde_json::Value;

use crate::dns::{self, MESH_HOST};
use crate::failures::living_pods;
use crate::path_of;

/// How many new connections there are to be, from before the upgrade to after it.
const CONNECTIONS: usize = 5000;
/// A response that goes on until it is told to end.
const STREAM: &str = r"#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
until [ -e /memory/end ]; do date; sleep 1; done
echo whole
";
/// One long response, and one new connection after the other, whose status codes are kept.
const CLIENT: &str = r"
until curl -sf -o /dev/null http://web/; do sleep 0.2; done
(curl -sSN http://web/cgi-bin/stream >/memory/stream 2>&1; echo $? >/memory/ended) &
until [ -e /memory/stop ]; do
  curl -s -o /dev/null -H 'Connection: close' -w '%{http_code} %{time_total} %{errormsg}\n' 'http://web/?[1-100]' >>/memory/codes
done
sleep 86400";

/// Creates the server of long responses, and a client that runs a script, and waits until both run.
async fn create_server_and_client(ns: &Namespace, script: &str) {
    let client = deployment("client", &with_memory(pod_spec("Always", &[shell("main", script)])));
    ns.create_objects(streaming_server(STREAM).into_iter().chain([client])).await;
    wait_for_rollout(ns.name(), "deployment/web");
    wait_for_rollout(ns.name(), "deployment/client");
}

/// Runs a script in the only pod of a Deployment.
pub(crate) fn exec(ns: &Namespace, deployment: &str, script: &str) -> String {
    ns.run_script(&format!("deployment/{deployment}"), script)
}

/// Waits for the first line of the long response that goes to a file.
async fn until_streaming(ns: &Namespace, file: &str) {
    // The file is not there at first.
    let seen = async || exec(ns, "client", &format!("cat /memory/{file} || true")).contains(':').then_some(());
    ns.until("a long response", seen).await;
}

fn codes(ns: &Namespace) -> Vec<String> {
    exec(ns, "client", "cat /memory/codes").lines().map(str::to_owned).collect()
}

/// Returns how many new connections there have been.
fn connections(ns: &Namespace) -> usize {
    exec(ns, "client", "wc -l </memory/codes").trim().parse().expect("it is a number")
}

/// Waits until there have been so many new connections, and never long for the next one: how fast they come is the machine's matter.
async fn until_connections(ns: &Namespace, expected: usize) {
    let mut seen = connections(ns);
    while seen < expected {
        seen = ns.until("a new connection", async || Some(connections(ns)).filter(|&now| now > seen)).await;
    }
}

/// Returns the namespace's proxies that are of an image.
fn proxies_of(ns: &Namespace, image: &str) -> Vec<Value> {
    let mut proxies = node::proxies_in(ns.name());
    proxies.retain(|proxy| proxy["image"] == image);
    proxies
}

fn states(ns: &Namespace, image: &str) -> Vec<String> {
    proxies_of(ns, image).iter().map(|proxy| proxy["state"].as_str().unwrap_or_default().to_owned()).collect()
}

pub(crate) async fn until_states(ns: &Namespace, image: &str, expected: &[&str]) {
    let seen = RefCell::new(Vec::new());
    let is_so = async || {
        let now = states(ns, image);
        let is_so = now == expected;
        if *seen.borrow() != now {
            println!("{now:?} of {image}");
            seen.replace(now);
        }
        is_so.then_some(())
    };
    ns.until(&format!("{expected:?} of {image}"), is_so).await;
}

#[tokio::test]
async fn upgrade_breaks_and_refuses_no_connection() {
    let ns = &scenario("node-upgrade", &[NODE_PROXY]).await;
    create_server_and_client(ns, CLIENT).await;
    let before = node::proxy_image();
    until_streaming(ns, "stream").await;
    until_states(ns, &node::root_of(&before), &["running", "running"]).await;

    let next = NextImage::install();
    until_states(ns, &node::root_of(&next.name), &["running", "running"]).await;
    // They serve the long response still.
    let code = "[ ! -e /memory/ended ] || cat /memory/ended";
    let goes_on = || assert_eq!(exec(ns, "client", code), "", "the long response goes on");
    goes_on();
    until_states(ns, &node::root_of(&before), &["draining", "draining"]).await;
    until_connections(ns, CONNECTIONS.max(connections(ns) + 500)).await;
    goes_on();
    exec(ns, "web", "touch /memory/end");
    ns.until("its end", async || exec(ns, "client", "ls /memory").contains("ended").then_some(())).await;
    assert_eq!(exec(ns, "client", "tail -n 1 /memory/stream; cat /memory/ended"), "whole\n0\n");
    until_states(ns, &node::root_of(&before), &[]).await;

    // Back on the ordinary ports.
    drop(next);
    until_states(ns, &node::root_of(&before), &["running", "running"]).await;
    until_connections(ns, connections(ns) + 500).await;
    let codes = codes(ns);
    let refused: Vec<_> = codes.iter().filter(|code| !code.starts_with("200 ")).collect();
    println!("{} new connections, {} refused", codes.len(), refused.len());
    assert!(refused.is_empty(), "of {} new connections: {refused:?}", codes.len());
    for pod in ns.pods_with("app in (web, client)").await {
        assert_eq!(PodView(&pod).restarts("main"), Some(0), "its probes reach it all the time");
    }

    // The control: a proxy that ends without a next one breaks a long response.
    exec(ns, "web", "rm /memory/end");
    exec(ns, "client", "touch /memory/stop");
    begin_stream(ns, "again").await;
    node::kill_proxies();
    until_broken(ns, "again").await;
    // After upgrades, too, a proxy that ends is started again.
    until_states(ns, &node::root_of(&before), &["running", "running"]).await;
    ns.until("a response", async || (exec(ns, "client", &asks_status("web")) == "200").then_some(())).await;
}

/// Has a long response begin that goes to a file.
async fn begin_stream(ns: &Namespace, file: &str) {
    let ask = format!("curl -sSN http://web/cgi-bin/stream >/memory/{file}; echo $? >/memory/{file}-status");
    exec(ns, "client", &format!("({ask}) >/dev/null 2>&1 &"));
    until_streaming(ns, file).await;
}

/// Waits until such a response has ended, and fails unless it was broken.
async fn until_broken(ns: &Namespace, file: &str) {
    let status = async || {
        Some(exec(ns, "client", &format!("cat /memory/{file}-status || true"))).filter(|text| !text.is_empty())
    };
    assert_ne!(ns.until("the response's end", status).await.trim(), "0", "it was broken");
}

#[tokio::test]
async fn no_proxy_before_the_last_upgrade_accepts_connections() {
    let ns = &scenario("node-upgrades", &[NODE_PROXY]).await;
    create_server_and_client(ns, "sleep 86400").await;
    let before = node::root_of(&node::proxy_image());

    // Each proxy has a long response of its own.
    begin_stream(ns, "first").await;
    let mut next = NextImage::install();
    let between = node::root_of(&next.name);
    until_states(ns, &between, &["running", "running"]).await;
    begin_stream(ns, "second").await;
    next.install_next();
    until_states(ns, &node::root_of(&next.name), &["running", "running"]).await;
    for earlier in [&before, &between] {
        until_states(ns, earlier, &["draining", "draining"]).await;
    }

    for app in ["app=web", "app=client"] {
        let [proxy, _] = ProxyProcess::of(&path_of(ns, app).await);
        // Its admin port is the serving proxy's: those of the earlier ones are 15000 and 15100.
        let serving = proxy.listeners(15200);
        assert_eq!(serving.len(), 1, "{app}");
        // Connections that go out, and those that come in.
        for port in [15001, 15006] {
            let is_alone = async || (proxy.listeners(port) == serving).then_some(());
            ns.until(&format!("only the last proxy of {app} to listen on {port}"), is_alone).await;
        }
    }
    exec(ns, "web", "touch /memory/end");
    for (earlier, name) in [(&before, "first"), (&between, "second")] {
        until_states(ns, earlier, &[]).await;
        assert!(exec(ns, "client", &format!("cat /memory/{name}")).ends_with("whole\n"), "{name}");
    }
}

#[tokio::test]
async fn proxy_before_an_upgrade_ends_with_its_connections_after_the_drain_timeout() {
    let ns = &scenario("node-upgrade-drain", &[NODE_PROXY]).await;
    create_server_and_client(ns, "sleep 86400").await;
    let _restored = Restored(|| node::set_value("drainTimeout=3600"));
    node::roll_out("drainTimeout=10");
    let before = node::root_of(&node::proxy_image());
    begin_stream(ns, "stream").await;

    let next = NextImage::install();
    until_states(ns, &node::root_of(&next.name), &["running", "running"]).await;
    until_states(ns, &before, &[]).await;
    until_broken(ns, "stream").await;
    let log = node::agent_log();
    assert!(log.contains("drain timeout: ending an earlier proxy with its connections"), "{log}");
}

#[tokio::test]
async fn upgraded_proxies_answer_captured_dns() {
    let ns = &scenario("node-upgrade-dns", &[NODE_PROXY]).await;
    let before = deployment("before", &pod_spec("Always", &[shell("main", "sleep 86400")]));
    ns.create_objects([before]).await;
    wait_for_rollout(ns.name(), "deployment/before");
    dns::capture_with_host(ns).await;
    let client = CLIENT.replace("web", MESH_HOST).replace("[1-100]", "");
    let client = deployment("client", &with_memory(pod_spec("Always", &[shell("main", &client)])));
    ns.create_objects(streaming_server(STREAM).into_iter().chain([client])).await;
    wait_for_rollout(ns.name(), "deployment/client");
    let (before, client) = (path_of(ns, "app=before").await, path_of(ns, "app=client").await);
    let pilot_agent = || ProxyProcess::of(&client)[0];
    let served_by = async |port: u16| {
        until_connections(ns, connections(ns) + 20).await;
        let rules = pilot_agent().rules();
        let is_redirection = |rule: &&String| rule.contains("--dport 53 ") && rule.contains("-j REDIRECT");
        let to_dns: Vec<_> = rules.iter().filter(is_redirection).collect();
        let suffix = format!("--to-ports {port}");
        assert!(!to_dns.is_empty() && to_dns.iter().all(|rule| rule.ends_with(&suffix)), "{port}: {rules:#?}");
    };
    let first = node::proxy_image();
    until_streaming(ns, "stream").await;
    served_by(15053).await;
    let resolver = exec(ns, "client", "cat /etc/resolv.conf");
    let server = resolver.lines().find_map(|line| line.strip_prefix("nameserver ")?.parse().ok());
    let end = dns::ask_by(pilot_agent().udp_socket(), server.expect("it has a name server"));
    exec(ns, "web", "touch /memory/end");
    let mut next = NextImage::install();
    until_states(ns, &node::root_of(&first), &[]).await;
    served_by(15153).await;
    // As where `istio-iptables` found rules by that.
    pilot_agent().move_rules_to_legacy();
    let second = next.name.clone();
    next.install_next();
    until_states(ns, &node::root_of(&second), &[]).await;
    served_by(15253).await;
    let captures = |pod: &str| ProxyProcess::of(pod)[0].environment().remove("ISTIO_META_DNS_CAPTURE");
    assert_eq!([&before, &client].map(|pod| captures(pod)), ["false", "true"].map(|value| Some(value.to_owned())));
    let last = next.name.clone();
    drop(next);
    until_states(ns, &node::root_of(&last), &[]).await;
    served_by(15053).await;
    let codes = codes(ns);
    let failed: Vec<_> = codes.iter().filter(|code| !code.starts_with("200 ")).collect();
    println!("{} lookups by new sockets, {} by one that was kept", codes.len(), end());
    assert!(failed.is_empty(), "of {} lookups: {failed:?}", codes.len());
    assert_eq!(PodView(&ns.pod_with("app=client").await).restarts("main"), Some(0));
}

#[tokio::test]
async fn firewall_rules_of_a_payload_do_not_fill_the_nodes_memory() {
    let ns = &scenario("node-upgrade-rules", &[NODE_PROXY]).await;
    ns.create_objects([deployment("client", &pod_spec("Always", &[shell("main", "sleep 86400")]))]).await;
    wait_for_rollout(ns.name(), "deployment/client");
    let client = path_of(ns, "app=client").await;
    let [pilot_agent, _] = ProxyProcess::of(&client);
    // 1.3 MB as `iptables-save` writes them.
    pilot_agent.add_rules(40_000);
    let first = node::root_of(&node::proxy_image());
    let next = NextImage::begin_next();
    let limit = "iptables-nft-save: the pod's rules are more than 1048576 bytes";
    ns.until("the limit", async || node::unready().filter(|reason| reason.contains(limit))).await;
    assert_eq!(states(ns, &first), ["running"], "it goes on alone");
    let certificate = node::certificate_directories(ns.name()).remove(0);
    let rules = Path::new(&certificate).with_file_name("rules");
    assert!(rules.is_dir() && !rules.join("rules").exists());
    drop(next);
    pilot_agent.remove_rules();

    // After an upgrade, a proxy starts again whatever rules there are.
    let next = NextImage::install();
    let second = node::root_of(&next.name);
    until_states(ns, &first, &[]).await;
    let [pilot_agent, _] = ProxyProcess::of(&client);
    pilot_agent.add_rules(40_000);
    node::kill_proxies();
    ns.until("the proxy's end", async || (!pilot_agent.exists()).then_some(())).await;
    // The port is the serving proxy's by rules of the upgrade.
    let asks = asks_status("localhost:15021/healthz/ready");
    ns.until("readiness", async || (exec(ns, "client", &asks) == "200").then_some(())).await;
    assert_eq!(states(ns, &second), ["running"]);
    ProxyProcess::of(&client)[0].remove_rules();
    drop(next);
    until_states(ns, &first, &["running"]).await;
}

#[tokio::test]
async fn upgrade_that_fails_after_the_redirection_is_undone() {
    let ns = &scenario("node-upgrade-undone", &[NODE_PROXY]).await;
    ns.create_objects([deployment("client", &pod_spec("Always", &[shell("main", "sleep 86400")]))]).await;
    wait_for_rollout(ns.name(), "deployment/client");
    let pilot_agent = ProxyProcess::of(&path_of(ns, "app=client").await)[0];
    let leads_to_next =
        || pilot_agent.rules().iter().any(|rule| rule.ends_with("--dport 15021 -j REDIRECT --to-ports 15121"));
    let is_ready = || exec(ns, "client", &asks_status("localhost:15021/healthz/ready")) == "200";
    let first = node::root_of(&node::proxy_image());
    let until_undone = async |next: &str| {
        until_states(ns, &node::root_of(next), &[]).await;
        assert_eq!(states(ns, &first), ["running"]);
        assert!(is_ready() && !leads_to_next(), "{:#?}", pilot_agent.rules());
    };
    // The agent records the serving proxy by a file of this name.
    let record = Path::new(&node::certificate_directories(ns.name()).remove(0)).with_file_name(".revision");

    fs::create_dir(&record).expect("it is not there");
    let next = NextImage::begin_next();
    let failure = "the sandbox' files: Is a directory";
    ns.until("the failure", async || node::unready().filter(|reason| reason.contains(failure))).await;
    until_undone(&next.name).await;
    let is_jump = |rule: &String| rule.starts_with("-A PREROUTING -j AUX_PROXY_PORTS");
    assert!(pilot_agent.rules().iter().any(is_jump), "the ports had been redirected");
    drop(next);

    // Who opens it waits for a reader: the agent ends before it has recorded the next proxy.
    fs::remove_dir(&record).expect("it is there");
    printed(&run("mkfifo", &[&record.display().to_string()], ""));
    let next = NextImage::begin_next();
    ns.until("the redirection", async || leads_to_next().then_some(())).await;
    assert!(is_ready(), "by the next proxy");
    let name = next.name.clone();
    drop(next);
    until_undone(&name).await;

    fs::remove_file(&record).expect("it is there");
    let _next = NextImage::install();
    until_states(ns, &first, &[]).await;
    assert!(is_ready(), "by the next proxy");
}

#[tokio::test]
async fn failed_upgrade_stops_the_rollout_and_leaves_the_serving_proxies() {
    let ns = &scenario("node-upgrade-fails", &[MESH]).await;
    living_pods(ns).await;
    assert_heard(ns, "before").await;
    let serving = node::root_of(&node::proxy_image());
    // It has no pilot-agent.
    let next = NextImage::begin(payload_image());
    let failures = format!("the proxy of {}/", ns.name());
    let is_said = |reason: &String| reason.contains(&failures) && reason.contains("cannot be upgraded (1 others)");
    ns.until("a failure of each", async || node::unready().filter(is_said)).await;
    let is_unavailable = async || (node::daemon_set(".status.numberUnavailable") == "1").then_some(());
    ns.until("a rollout that waits", is_unavailable).await;
    assert_eq!(node::daemon_set(".status.updatedNumberScheduled"), "1");
    assert_eq!(states(ns, &serving), ["running", "running"]);
    // Nothing is left of what did not start.
    until_states(ns, &node::root_of(&next.name), &[]).await;
    assert_still_heard(ns, "after an upgrade that failed").await;
    // The image that served: the rollout ends.
    drop(next);
    assert_eq!(node::unready(), None);
    assert_eq!(states(ns, &serving), ["running", "running"]);
    assert_still_heard(ns, "after the rollback").await;
}
