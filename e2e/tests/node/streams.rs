//! Long gRPC streams, `WebSockets` and TCP connections, and short gRPC calls, through an upgrade of both their proxies.

use e2e::cluster::NODE_PROXY;
use e2e::echo::{self, EchoClient};
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::strict;
use e2e::node::{self, NextImage};
use e2e::{Namespace, scenario};

use crate::upgrade::until_states;

/// Starts a server and a client with open streams.
async fn start(ns: &Namespace) -> EchoClient<'_> {
    ns.create_objects([strict()].into_iter().chain(echo::server())).await;
    wait_for_rollout(ns.name(), "deployment/echo");
    ns.create_objects([echo::client("0.1")]).await;
    wait_for_rollout(ns.name(), "deployment/echo-client");
    let client = EchoClient { ns, pod: "deployment/echo-client".to_owned() };
    client.until_echoed(20).await;
    client
}

/// Asserts that the streams go on while both proxies are upgraded from one image to the next. Then opens others.
async fn assert_go_on(client: &EchoClient<'_>, from: &str, to: &str) {
    let [from, to] = [from, to].map(node::root_of);
    until_states(client.ns, &to, &["running", "running"]).await;
    client.ns.until_event("Pod", "ProxyUpgraded").await;
    until_states(client.ns, &from, &["draining", "draining"]).await;
    // Envoy's own drain time of 45 s is over by then.
    client.until_echoed(500).await;
    until_states(client.ns, &from, &["draining", "draining"]).await;
    client.end().await;
    until_states(client.ns, &from, &[]).await;
    client.begin_again();
    client.until_echoed(20).await;
}

#[tokio::test]
async fn grpc_streams_and_websockets_go_on_through_an_upgrade() {
    let ns = &scenario("node-upgrade-streams", &[NODE_PROXY]).await;
    let client = start(ns).await;
    let next = NextImage::install();
    assert_go_on(&client, &node::proxy_image(), &next.name).await;

    // The control: a proxy that ends without a next one breaks them.
    node::kill_proxies();
    let broken = client.ends().await;
    assert!(broken.iter().all(|report| echo::is_error(report)), "{broken:?}");
}

#[tokio::test]
async fn streams_go_on_from_one_version_of_istio_to_the_next_and_back() {
    let present = node::proxy_image();
    let (repository, _) = present.rsplit_once(':').expect("it has a tag");
    // Of the cluster's component earlier-proxy.
    let earlier = format!("{repository}:1.30");
    let first = NextImage::of(earlier.clone());
    let ns = &scenario("node-upgrade-versions", &[NODE_PROXY]).await;
    let client = start(ns).await;
    until_states(ns, &node::root_of(&earlier), &["running", "running"]).await;
    // Goes back to the present one.
    drop(first);
    assert_go_on(&client, &earlier, &present).await;
    let _again = NextImage::of(earlier.clone());
    assert_go_on(&client, &present, &earlier).await;
}
