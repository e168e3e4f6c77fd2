//! Counts of the shim's wake-ups.

use std::thread::sleep;
use std::time::Duration;

use super::pod::{BOTH, Shim, announced, until};

const FORKS: &str = "/bin/true;";

/// Returns how often the shim wakes in these seconds.
fn wake_ups_in(seconds: u64, shim: &Shim) -> u64 {
    let before = shim.wake_ups();
    sleep(Duration::from_secs(seconds));
    shim.wake_ups() - before
}

#[test]
fn shim_beside_running_forking_payloads_sleeps() {
    let (pod, _proxy, mut shim) = announced(&BOTH);
    let [main, metrics] = ["main", "metrics"].map(|name| shim.observe(&pod, name, || pod.payload_that(name, FORKS, 0)));
    let count = wake_ups_in(5, &shim);
    assert!(count <= 10, "{count} times in 5 s");
    main.finish();
    metrics.finish();
    shim.until_logged("istio-proxy ended");
}

#[test]
fn shim_beside_sleeping_containers_sleeps() {
    let (pod, _proxy, mut shim) = announced(&BOTH);
    let _main = pod.start("main", "exec sleep 1000");
    shim.until_logged("container started container=main");
    let _metrics = pod.start("metrics", "exec sleep 1000");
    shim.until_logged("container started container=metrics");
    until("two seconds without a wake-up", || wake_ups_in(2, &shim) == 0);
    // A shim that polls, however seldom, wakes in this window.
    let count = wake_ups_in(20, &shim);
    assert_eq!(count, 0, "{count} times in 20 s");
}

#[test]
fn waiting_container_beside_forks_costs_few_wake_ups() {
    let (pod, _proxy, mut shim) = announced(&BOTH);
    let _main = pod.payload_that("main", FORKS, 0);
    shim.until_logged("container started container=main");
    // The image of metrics is being pulled.
    let count = wake_ups_in(5, &shim);
    assert!(count <= 15, "{count} times in 5 s");
}
