//! Long gRPC streams, `WebSockets` and TCP connections, and short gRPC calls, through an upgrade of both their proxies.

use e2e::cluster::NODE_PROXY;
use e2e::echo::{self, EchoClient};
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::strict;
use e2e::node::{self, NextImage};
use e2e::scenario;

use crate::upgrade::until_states;

#[tokio::test]
async fn grpc_streams_and_websockets_go_on_through_an_upgrade() {
    let ns = &scenario("node-upgrade-streams", &[NODE_PROXY]).await;
    ns.create_objects([strict()].into_iter().chain(echo::server())).await;
    wait_for_rollout(ns.name(), "deployment/echo");
    ns.create_objects([echo::client("0.1")]).await;
    wait_for_rollout(ns.name(), "deployment/echo-client");
    let client = EchoClient { ns, pod: "deployment/echo-client".to_owned() };
    client.until_echoed(20).await;

    let before = node::root_of(&node::proxy_image());
    let next = NextImage::install();
    until_states(ns, &node::root_of(&next.name), &["running", "running"]).await;
    until_states(ns, &before, &["draining", "draining"]).await;
    // Envoy's own drain time of 45 s is over by then.
    client.until_echoed(500).await;
    until_states(ns, &before, &["draining", "draining"]).await;
    client.end().await;
    until_states(ns, &before, &[]).await;

    // The control: a proxy that ends without a next one breaks them.
    client.begin_again();
    client.until_echoed(20).await;
    node::kill_proxies();
    let broken = client.ends().await;
    assert!(broken.iter().all(|report| echo::is_error(report)), "{broken:?}");
}
