//! The kubelet's report, and starts and ends that the shim misses.

use std::thread::sleep;
use std::time::Duration;

use super::pod::{self, Agent, BOTH, NEVER, NOTHING, ON_FAILURE, Pod, announced, code, pod_with_proxy};

const BY_KUBELET: &str = "awaited containers finished known-by=kubelet codes=\"main=0\"";

#[test]
fn start_that_is_noticed_late_is_observed() {
    let (pod, proxy, mut shim) = announced(&BOTH);
    shim.suspend();
    let main = pod.payload("main", 0);
    let metrics = pod.payload("metrics", 0);
    main.container.until_mounted();
    metrics.container.until_mounted();
    // Late is more than 50 ms after the last scan.
    sleep(Duration::from_millis(100));
    shim.resume();
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=metrics");
    main.finish();
    metrics.finish();
    // What was found late may have been an exec session's: it ends its container only once the kubelet says so.
    pod.report("main=0,metrics=0");
    let log = proxy.assert_quit_once(shim);
    assert!(log.contains("awaited containers finished known-by=kubelet"), "{log}");
}

#[test]
fn container_that_was_never_seen_is_reported() {
    let (pod, proxy, mut shim) = announced(&NEVER);
    shim.suspend();
    pod.start("main", "true").wait();
    shim.resume();
    // Nothing shows that the shim has scanned, and it scans each second.
    sleep(Duration::from_secs(2));
    assert_eq!(proxy.requests(), NOTHING, "the runtime may be about to start it: {}", shim.log());
    pod.report("main=0");
    shim.until_logged(BY_KUBELET);
    proxy.assert_quit_once(shim);
}

#[test]
fn short_container_is_observed() {
    let (pod, proxy, mut shim) = announced(&NEVER);
    shim.observe(&pod, "main", || pod.start("main", "sleep 0.1")).wait();
    let log = proxy.assert_quit_once(shim);
    assert!(log.contains("awaited containers finished known-by=exit"), "{log}");
}

#[test]
fn killed_container_is_final_only_if_reported() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &NEVER);
    let mut main = shim.payload(&pod, "main", 0).container;
    main.kill();
    main.wait();
    shim.until_logged("container exited container=main");
    if pod::kernel_reports_codes() {
        // Its image was changed, and the kubelet starts it again under any policy.
        let again = shim.payload(&pod, "main", 0);
        assert_eq!(proxy.requests(), NOTHING);
        again.container.kill();
        shim.until_logged_times(2, "container exited container=main code=137");
        assert_eq!(proxy.requests(), NOTHING);
        pod.report("main=137");
    }
    proxy.assert_quit_once(shim);
}

#[test]
fn container_that_its_probe_may_restart_is_final_only_if_reported() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &[&ON_FAILURE[..], &["--may-restart=main"]].concat());
    for attempt in [1, 2] {
        let main = shim.payload(&pod, "main", 0);
        assert_eq!(proxy.requests(), NOTHING);
        main.finish();
        shim.until_logged_times(attempt, &format!("container exited container=main {}", code(0)));
    }
    assert_eq!(proxy.requests(), NOTHING);
    pod.report("main=0");
    proxy.assert_quit_once(shim);
}

#[test]
fn report_while_an_awaited_container_runs_ends_nothing() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &BOTH);
    let main = shim.payload(&pod, "main", 0);
    let metrics = shim.payload(&pod, "metrics", 0);
    pod.report("main=0,metrics=0");
    main.finish();
    shim.until_logged("container exited container=main");
    assert_eq!(proxy.requests(), NOTHING, "metrics runs, so the report is wrong");
    assert!(!shim.log().contains("awaited containers finished"), "{}", shim.log());
    metrics.finish();
    proxy.assert_quit_once(shim);
}

#[test]
fn restarted_shim_finds_what_runs_and_waits_for_the_report_of_the_rest() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &BOTH);
    let (main, metrics) = (shim.payload(&pod, "main", 0), shim.payload(&pod, "metrics", 0));
    main.finish();
    shim.until_logged("container exited container=main");
    shim.kill();
    let mut shim = pod.watch(&proxy, &BOTH);
    shim.until_logged("container started container=metrics");
    metrics.finish();
    shim.until_logged("container exited container=metrics");
    assert_eq!(proxy.requests(), NOTHING, "this shim has not seen main");
    pod.report("main=0,metrics=0");
    let log = proxy.assert_quit_once(shim);
    assert!(log.contains("awaited containers finished known-by=kubelet"), "{log}");
}

#[test]
fn report_of_before_the_shims_start_counts_unless_all_may_restart() {
    let (pod, proxy) = pod_with_proxy();
    pod.report("main=0");
    let mut shim = pod.watch(&proxy, &[&NEVER[..], &["--all-may-restart"]].concat());
    shim.until_scanned();
    assert!(!shim.log().contains("awaited containers finished"), "{}", shim.log());
    assert_eq!(proxy.requests(), NOTHING, "{}", shim.log());
    pod.report_nothing();
    pod.report("main=0");
    proxy.assert_quit_once(shim);
    let proxy = pod::Proxy::started(&pod);
    proxy.assert_quit_once(pod.watch(&proxy, &NEVER));
}

#[test]
fn start_after_the_request_is_warned_of() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &NEVER);
    pod.report("main=0");
    shim.until_logged("istio-proxy ended");
    let _main = pod.payload("main", 0);
    shim.until_logged("WARN container started after istio-proxy was asked to quit");
}

#[test]
fn report_alone_ends_the_proxy_where_processes_are_not_read() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &[&NEVER[..], &["--report-only"]].concat());
    let main = pod.payload("main", 0);
    main.finish();
    sleep(Duration::from_secs(1));
    assert_eq!(proxy.requests(), NOTHING);
    assert!(!shim.log().contains("container"), "{}", shim.log());
    pod.report("main=0");
    shim.until_logged(BY_KUBELET);
    shim.until_logged("asked istio-proxy to quit");
    // Its port shows if it still runs, and this one stays open.
    assert!(shim.container.is_running());
    assert_eq!(shim.terminate().0, Some(0));
}

#[test]
fn supervisor_takes_the_report() {
    for more in [&[][..], &["--report-only"]] {
        let pod = Pod::new();
        let agent = Agent::new(&pod, 0);
        let shim = pod.supervise(&agent, &[&ON_FAILURE[..], more].concat());
        assert_eq!(agent.quit_requests(), 0);
        pod.report("main=0");
        agent.assert_quit_once(shim);
    }
}

#[test]
fn exec_session_that_was_found_first_has_no_exit_code() {
    let (pod, proxy, mut shim) = announced(&ON_FAILURE);
    shim.suspend();
    let mut main = pod.start("main", "sleep 0.2");
    main.init();
    let hook = pod.exec("main", "exec sleep 1000");
    hook.until_mounted();
    main.wait();
    shim.resume();
    shim.until_logged("container started container=main");
    // The runtime ends it after the init process.
    hook.kill();
    shim.until_logged("container exited container=main code=unknown");
    assert_eq!(proxy.requests(), NOTHING);
    pod.report("main=0");
    shim.until_logged("asked istio-proxy to quit");
}
