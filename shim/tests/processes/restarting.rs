//! A shim that is killed and restarted, with a file of what it has observed.

use std::fs;

use super::pod::{Agent, Pod, code, pod_with_proxy, retry_window};

const NOTHING: [&str; 0] = [];
const RESTORED: &str = "restarted: restored what was observed before";

/// Awaits `main` and `metrics`, with a state file.
fn arguments(pod: &Pod, policy: &str) -> Vec<String> {
    let state = format!("--state={}", pod.file("state").display());
    let policy = format!("--restart-policy={policy}");
    vec!["--await=main".to_owned(), "--await=metrics".to_owned(), policy, retry_window(2), state]
}

#[test]
fn restarted_shim_knows_earlier_exits() {
    let (pod, proxy) = pod_with_proxy();
    let arguments = arguments(&pod, "OnFailure");
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.push("--container-policy=istio-proxy=Never");
    // One has succeeded, and will never be seen again; the other runs.
    let mut shim = pod.watch(&proxy, &arguments);
    let (main, metrics) = (pod.payload("main", 0), pod.payload("metrics", 1));
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=metrics");
    main.finish();
    shim.until_logged(&format!("container exited container=main {}", code(0)));
    shim.kill();
    let mut shim = pod.watch(&proxy, &arguments);
    shim.until_logged(RESTORED);
    metrics.finish();
    shim.until_logged(&format!("container exited container=metrics {}", code(1)));
    let last = shim.payload(&pod, "metrics", 0);
    shim.kill();
    // The last attempt ends while no shim watches: its code is never known, and it may be restarted for a while.
    last.finish();
    assert_eq!(proxy.requests(), NOTHING);
    let mut shim = pod.watch(&proxy, &arguments);
    shim.until_logged("container exited container=metrics code=unknown");
    shim.until_logged("istio-proxy ended");
    let (status, log) = shim.terminate();
    assert_eq!((status, proxy.requests().len()), (Some(0), 1), "{log}");
    // All is over: one that is restarted then has nothing to do, waits for SIGTERM for a while, and exits.
    let (status, log) = pod.watch(&proxy, &arguments).end();
    assert_eq!((status, proxy.requests().len()), (Some(0), 1), "{log}");
}

#[test]
fn restarted_supervisor_knows_earlier_exits() {
    let pod = Pod::new();
    let agent = Agent::new(&pod, 0);
    let arguments = arguments(&pod, "OnFailure");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut shim = pod.supervise(&agent, &arguments);
    let (main, metrics) = (pod.payload("main", 0), pod.payload("metrics", 0));
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=metrics");
    main.finish();
    shim.until_logged("container exited container=main");
    shim.kill();
    let mut shim = pod.supervise(&agent, &arguments);
    shim.until_logged(RESTORED);
    assert_eq!(agent.quit_requests(), 0);
    metrics.finish();
    agent.assert_quit_once(shim);
}

#[test]
fn running_containers_are_awaited_despite_state_file() {
    let (pod, proxy) = pod_with_proxy();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let over = |name, id| format!("{name} {id} 999 1000 0 terminated 0 2000 - -\n");
    let names = [("main", "0000aaaa"), ("metrics", "0000bbbb"), ("istio-proxy", "0000cccc")];
    let text: String = names.map(|(name, id)| over(name, id)).concat();
    fs::write(pod.file("state"), format!("aux-shim 2 {}\n{text}", boot.trim())).unwrap();
    let (main, metrics) = (pod.payload("main", 0), pod.payload("metrics", 0));
    for (name, payload) in [("main", &main), ("metrics", &metrics)] {
        let mounts = format!("/proc/{}/mountinfo", payload.container.init());
        let is_named = |mounts: String| mounts.contains(&format!("/containers/{name}/"));
        super::pod::until("a container's mounts", || fs::read_to_string(&mounts).is_ok_and(is_named));
    }
    let arguments = arguments(&pod, "OnFailure");
    let mut shim = pod.watch(&proxy, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    shim.until_logged(RESTORED);
    for name in ["main", "metrics", "istio-proxy"] {
        shim.until_logged(&format!("container started container={name}"));
    }
    metrics.finish();
    shim.until_logged("container exited container=metrics");
    assert_eq!(proxy.requests(), NOTHING, "main runs");
    main.finish();
    shim.until_logged("istio-proxy ended");
    let (status, log) = shim.terminate();
    assert_eq!((status, proxy.requests().len()), (Some(0), 1), "{log}");
}

#[test]
fn invalid_state_file_is_ignored_and_logged_once() {
    let (pod, proxy) = pod_with_proxy();
    fs::write(pod.file("state"), "\0rubbish\n").unwrap();
    let (main, metrics) = (pod.payload("main", 0), pod.payload("metrics", 0));
    let arguments = arguments(&pod, "Never");
    let mut shim = pod.watch(&proxy, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=metrics");
    main.finish();
    metrics.finish();
    let log = proxy.assert_quit_once(shim);
    assert_eq!(log.matches("is not one of ours, and is ignored").count(), 1, "{log}");
}
