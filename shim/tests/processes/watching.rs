//! `aux-shim watch` in a PID namespace that the containers share.

use std::net::TcpListener;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket};

use super::pod::{self, BOTH, NEVER, NOTHING, ON_FAILURE, Pod, Proxy, announced, code, pod_with_proxy};

const QUIT: &str = "POST /quitquitquit HTTP/1.1";

#[test]
fn proxy_is_asked_once_all_have_ended() {
    let (pod, proxy, mut shim) = announced(&BOTH);
    let main = shim.payload(&pod, "main", 3);
    main.finish();
    shim.until_logged(&format!("container exited container=main {}", code(3)));
    assert_eq!(proxy.requests(), NOTHING, "metrics has not even started");
    let metrics = shim.payload(&pod, "metrics", 0);
    assert_eq!(proxy.requests(), NOTHING, "metrics runs");
    metrics.finish();
    shim.until_logged("istio-proxy ended");
    let (status, log) = shim.terminate();
    assert_eq!((status, &proxy.requests()[..]), (Some(0), &[QUIT.to_owned()][..]), "{log}");
    let exited = format!("container exited container=metrics {}", code(0));
    for line in [&exited, "asked istio-proxy to quit", &format!("istio-proxy ended {}", code(137))] {
        assert_eq!(log.matches(line).count(), 1, "{line}\n{log}");
    }
}

#[test]
fn retried_container_keeps_proxy() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &ON_FAILURE);
    for main_code in [1, 1, 0] {
        let main = shim.payload(&pod, "main", main_code);
        assert_eq!(proxy.requests(), NOTHING);
        main.finish();
    }
    pod.report_unknown("main=0");
    let log = proxy.assert_quit_once(shim);
    let failed = format!("container exited container=main {}", code(1));
    assert!(log.matches(&failed).count() >= 2, "{log}");
}

#[test]
fn proxy_that_is_started_again_after_code_0_is_asked() {
    let pod = Pod::new();
    let mut proxy = Proxy::new();
    let mut shim = pod.watch(&proxy, &NEVER);
    let first = shim.payload(&pod, "istio-proxy", 0);
    let main = shim.payload(&pod, "main", 0);
    first.finish();
    shim.until_logged(&format!("istio-proxy ended before the awaited containers {}", code(0)));
    shim.observe(&pod, "istio-proxy", || proxy.start(&pod));
    main.finish();
    shim.until_logged_times(2, "istio-proxy ended");
    proxy.assert_quit_once(shim);
}

/// As a restarted container runtime does that has lost the ends of both.
#[test]
fn proxy_that_is_started_again_after_it_was_asked_serves_the_payloads_next_run() {
    let (pod, mut proxy, mut shim) = announced(&ON_FAILURE);
    let main = shim.payload(&pod, "main", 0);
    main.finish();
    pod.report_unknown("main=0");
    shim.until_logged("istio-proxy ended");
    pod.report_nothing();
    shim.observe(&pod, "istio-proxy", || proxy.start(&pod));
    let again = shim.payload(&pod, "main", 0);
    assert_eq!(proxy.requests(), [QUIT], "main runs again");
    again.finish();
    pod.report_unknown("main=0");
    shim.until_logged_times(2, "istio-proxy ended");
    let (status, log) = shim.terminate();
    assert_eq!((status, proxy.requests()), (Some(0), vec![QUIT.to_owned(); 2]), "{log}");
    assert_eq!(log.matches("awaited containers finished").count(), 2, "{log}");
    assert!(!log.contains("it may have no network"), "{log}");
}

#[test]
fn exec_session_is_not_a_container() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    let _session = pod.exec("main", "exec sleep 1000");
    main.finish();
    let log = proxy.assert_quit_once(shim);
    assert_eq!(log.matches("container started container=main").count(), 1, "{log}");
}

#[test]
fn draining_proxy_is_not_asked_again() {
    let pod = Pod::new();
    let mut proxy = Proxy::draining(Duration::from_secs(3));
    proxy.start(&pod);
    let mut shim = pod.watch(&proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    main.finish();
    proxy.assert_quit_once(shim);
}

#[test]
fn restarted_proxy_is_asked() {
    let (pod, mut proxy, mut shim) = announced(&ON_FAILURE);
    let main = shim.payload(&pod, "main", 0);
    proxy.crash();
    shim.until_logged(&format!("istio-proxy ended before the awaited containers {}", code(137)));
    shim.observe(&pod, "istio-proxy", || proxy.start(&pod));
    main.finish();
    pod.report_unknown("main=0");
    // The test's proxy exits with 137, so that OnFailure restarts it; the shim asks it again once the kubelet has reported main's end.
    shim.until_logged(&format!("istio-proxy ended {}", code(137)));
    assert_eq!(proxy.requests(), [QUIT]);
    shim.observe(&pod, "istio-proxy", || proxy.start(&pod));
    pod.report("main=0");
    pod::until("the second request", || proxy.requests() == [QUIT, QUIT]);
}

#[test]
fn other_endpoints_are_asked_before_the_proxy() {
    let (pod, proxy) = pod_with_proxy();
    let endpoint = format!("--quit=http://127.0.0.1:{}/sql/quit", proxy.port);
    let mut shim = pod.watch(&proxy, &[&NEVER[..], &[&endpoint]].concat());
    let (sql, main) = (pod.payload("sql", 0), shim.payload(&pod, "main", 0));
    main.finish();
    pod::until("both requests", || proxy.requests().len() == 2);
    assert_eq!(proxy.requests(), ["POST /sql/quit HTTP/1.1", QUIT]);
    sql.finish();
    let (status, log) = shim.terminate();
    assert_eq!(status, Some(0), "{log}");
}

#[test]
fn endpoint_that_listens_late_is_asked_again() {
    let (pod, proxy) = pod_with_proxy();
    // Bound and not listening: connections are refused, and no other test gets the port.
    let late = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(std::os::fd::AsRawFd::as_raw_fd(&late), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let port = getsockname::<SockaddrIn>(std::os::fd::AsRawFd::as_raw_fd(&late)).unwrap().port();
    let endpoint = format!("--quit=http://127.0.0.1:{port}/sql/quit");
    let mut shim = pod.watch(&proxy, &[&NEVER[..], &[&endpoint]].concat());
    let (sql, main) = (pod.payload("sql", 0), shim.payload(&pod, "main", 0));
    main.finish();
    shim.until_logged("did not answer");
    shim.until_logged("istio-proxy ended");
    listen(&late, Backlog::new(1).unwrap()).unwrap();
    pod::serve(TcpListener::from(late), |_, stream| {
        let _ = std::io::Write::write_all(stream, pod::ACCEPTED);
    });
    shim.until_logged("asked to quit endpoint=");
    sql.finish();
    let log = proxy.assert_quit_once(shim);
    assert_eq!(log.matches("asked to quit endpoint=").count(), 1, "one that has accepted is not asked again: {log}");
}

#[test]
fn unnamed_containers_are_warned_of_once() {
    let (pod, proxy) = pod_with_proxy();
    let shim = pod.watch_without_names(&proxy, &NEVER);
    let (status, log) = shim.terminate();
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(log.matches("containers have no names in /proc here").count(), 1, "{log}");
    assert_eq!(log.matches(" WARN ").count(), 1, "{log}");
}

#[test]
fn shim_is_ended_by_sigterm_only() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch(&proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    main.finish();
    shim.until_logged("istio-proxy ended");
    // The kubelet would start a shim again that ends before it knows of the proxy's end.
    sleep(Duration::from_secs(1));
    assert!(shim.container.is_running());
    assert_eq!(shim.terminate().0, Some(0));
}
