//! `aux-shim watch` in a PID namespace that the containers share.

use std::time::Duration;

use super::pod::{self, Pod, Proxy};

const QUIT: &str = "POST /quitquitquit HTTP/1.1";
const NOTHING: [&str; 0] = [];
const AT_ONCE: Duration = Duration::ZERO;

/// The arguments of a shim that awaits `main`, with the port of the proxy.
fn awaiting_main<'a>(policy: &'a str, port: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["watch", "--await=main", "--restart-policy", policy, "--status-port", port], more].concat()
}

#[test]
fn the_proxy_is_asked_once_when_all_have_ended() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    let port = proxy.port.to_string();
    let mut shim = pod.shim(&awaiting_main("Never", &port, &["--await=metrics"]));
    let main = pod.payload("main", 3);
    shim.until_logged("container started container=main");
    main.finish();
    shim.until_logged("container exited container=main code=3");
    assert_eq!(proxy.asked(), NOTHING, "metrics has not even started");
    let metrics = pod.payload("metrics", 0);
    shim.until_logged("container started container=metrics");
    metrics.finish();
    let (code, log) = shim.end();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(proxy.asked(), [QUIT]);
    for line in ["container exited container=metrics code=0", "asked istio-proxy to quit", "istio-proxy ended code=137"]
    {
        assert_eq!(log.matches(line).count(), 1, "{line}\n{log}");
    }
}

#[test]
fn a_retry_keeps_the_proxy() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    let port = proxy.port.to_string();
    let mut shim = pod.shim(&awaiting_main("OnFailure", &port, &["--container-policy=istio-proxy=Never"]));
    for (attempt, code) in [(1, 1), (2, 1), (3, 0)] {
        let main = pod.payload("main", code);
        shim.until_logged_times(attempt, "container started container=main");
        assert_eq!(proxy.asked(), NOTHING);
        main.finish();
    }
    let (code, log) = shim.end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
    assert_eq!(log.matches("container exited container=main code=1").count(), 2, "{log}");
}

#[test]
fn an_exec_session_is_no_container() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    let mut shim = pod.shim(&awaiting_main("Never", &proxy.port.to_string(), &[]));
    let main = pod.payload("main", 0);
    shim.until_logged("container started container=main");
    let _session = pod.exec("main", "exec sleep 1000");
    main.finish();
    let (code, log) = shim.end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
    assert_eq!(log.matches("container started container=main").count(), 1, "{log}");
}

#[test]
fn a_proxy_that_drains_is_not_asked_again() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, Duration::from_secs(3));
    let mut shim = pod.shim(&awaiting_main("Never", &proxy.port.to_string(), &[]));
    let main = pod.payload("main", 0);
    shim.until_logged("container started container=main");
    main.finish();
    let (code, log) = shim.end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
}

#[test]
fn a_proxy_that_died_and_came_back_is_asked() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    let mut shim = pod.shim(&awaiting_main("OnFailure", &proxy.port.to_string(), &[]));
    let main = pod.payload("main", 0);
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=istio-proxy");
    proxy.crash();
    shim.until_logged("istio-proxy ended before the awaited containers code=137");
    proxy.start_again(&pod);
    shim.until_logged_times(2, "container started container=istio-proxy");
    main.finish();
    // The stand-in ends with 137, which OnFailure restarts; a proxy that comes back is told again.
    shim.until_logged("istio-proxy ended code=137");
    assert_eq!(proxy.asked(), [QUIT]);
    proxy.start_again(&pod);
    pod::until("the second request", || proxy.asked() == [QUIT, QUIT]);
}

#[test]
fn other_endpoints_are_asked_before_the_proxy() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    let port = proxy.port.to_string();
    let endpoint = format!("--quit=http://127.0.0.1:{port}/sql/quit");
    let mut shim = pod.shim(&awaiting_main("Never", &port, &["--outlive=sql", &endpoint]));
    let (sql, main) = (pod.payload("sql", 0), pod.payload("main", 0));
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=sql");
    main.finish();
    pod::until("both requests", || proxy.asked().len() == 2);
    assert_eq!(proxy.asked(), ["POST /sql/quit HTTP/1.1", QUIT]);
    sql.finish();
    let (code, log) = shim.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_killed_shim_goes_on_where_it_was() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    let (port, state) = (proxy.port.to_string(), pod.file("state").display().to_string());
    let more = ["--await=other", "--container-policy=istio-proxy=Never", "--retry-window=1", "--state", &state];
    let arguments = awaiting_main("OnFailure", &port, &more);
    // One has succeeded, and will never be seen again; the other runs.
    let mut shim = pod.shim(&arguments);
    let (main, other) = (pod.payload("main", 0), pod.payload("other", 1));
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=other");
    main.finish();
    shim.until_logged("container exited container=main code=0");
    shim.kill();
    let mut shim = pod.shim(&arguments);
    shim.until_logged("took up what was seen before");
    other.finish();
    shim.until_logged("container exited container=other code=1");
    let last = pod.payload("other", 0);
    shim.until_logged("container started container=other");
    shim.kill();
    // The last attempt ends while no shim looks: its code is never known, and it is expected back for a while.
    last.finish();
    assert_eq!(proxy.asked(), NOTHING);
    let (code, log) = pod.shim(&arguments).end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
    assert!(log.contains("container exited container=other code=unknown"), "{log}");
    // All is over: one more start ends by itself.
    let (code, log) = pod.shim(&arguments).end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
}

#[test]
fn an_unreadable_state_file_is_ignored_and_logged_once() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    let file = pod.file("state");
    std::fs::write(&file, "\0rubbish\n").unwrap();
    let main = pod.payload("main", 0);
    let state = file.display().to_string();
    let mut shim = pod.shim(&awaiting_main("Never", &proxy.port.to_string(), &["--state", &state]));
    shim.until_logged("container started container=main");
    main.finish();
    let (code, log) = shim.end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
    assert_eq!(log.matches("is not one of ours, and is ignored").count(), 1, "{log}");
}

#[test]
fn without_names_every_process_from_outside_is_awaited() {
    let pod = Pod::new();
    let proxy = Proxy::start(&pod, AT_ONCE);
    // Only what is called pilot-agent is taken for the proxy; the stand-in's own process is awaited like any other.
    let program = pod.file("pilot-agent");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let agent = pod.start_unnamed(&[&program.display().to_string(), "1000"]);
    let mut shim = pod.shim_without_names(&awaiting_main("Never", &proxy.port.to_string(), &[]));
    shim.until_logged("containers have no names here");
    let main = pod.start_unnamed(&["sleep", "1000"]);
    shim.until_logged("container started container=istio-proxy");
    shim.until_logged_times(3, "container started");
    proxy.crash();
    main.kill();
    pod::until("the request", || proxy.asked() == [QUIT]);
    agent.kill();
    let (code, log) = shim.end();
    assert_eq!(code, Some(0), "{log}");
}

/// A pod whose starts are announced, with a shim that knows it.
fn announcing() -> (Pod, Proxy, pod::Shim) {
    let pod = Pod::new();
    let mut started = None;
    let proxy = Proxy::start_after(&pod, AT_ONCE, |port, pod| {
        started = Some(pod.shim(&awaiting_main("Never", &port.to_string(), &["--await=metrics"])));
        pod.announce();
    });
    let mut shim = started.unwrap();
    shim.until_logged("container started container=istio-proxy");
    (pod, proxy, shim)
}

#[test]
fn a_start_is_heard_of_however_late() {
    let (pod, proxy, mut shim) = announcing();
    shim.suspend();
    pod.announce();
    let main = pod.payload("main", 0);
    pod.announce();
    let metrics = pod.payload("metrics", 0);
    shim.resume();
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=metrics");
    main.finish();
    metrics.finish();
    let (code, log) = shim.end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
}

#[test]
fn a_container_that_came_and_went_while_the_shim_could_not_run_counts_as_ended() {
    let (pod, proxy, mut shim) = announcing();
    shim.suspend();
    pod.announce();
    pod.start("main", "true").wait();
    shim.resume();
    pod.announce();
    let metrics = pod.payload("metrics", 0);
    shim.until_logged("container started container=metrics");
    metrics.finish();
    shim.until_logged("container exited container=metrics code=0");
    assert_eq!(proxy.asked(), NOTHING, "main may still be seen");
    let (code, log) = shim.end();
    assert_eq!((code, proxy.asked().len()), (Some(0), 1), "{log}");
    assert_eq!(log.matches("container came and went unseen container=main code=unknown").count(), 1, "{log}");
}
