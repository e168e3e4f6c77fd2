//! Attacks of a hostile payload: it can do no more to the proxy and to other containers than in a pod without istio-aux.

use std::thread::sleep;
use std::time::Duration;

use super::pod::{self, BOTH, NEVER, Pod, Proxy, Shim, announced, code, pod_with_proxy};

/// The shim's user in injected pods, and another one.
const SHIM_USER: &str = "65019";
const PAYLOAD_USER: &str = "1000";

/// Lets the payload end, and checks that the pod ends then.
fn ends_with(main: pod::Payload, proxy: &Proxy, mut shim: Shim) {
    assert_eq!(proxy.requests().len(), 0, "{}", shim.log());
    main.finish();
    shim.until_logged(&format!("container exited container=main {}", code(0)));
    proxy.assert_quit_once(shim);
}

/// Attacks on the process `$0`. Each exits with 0 if the kernel allows it.
const ATTACKS: [&str; 10] = [
    "kill -s KILL $0",
    "kill -s STOP $0",
    "kill -s TERM $0",
    "strace -o /dev/null -p $0 & while kill -0 $!; do grep -q TracerPid:.*[1-9] /proc/$0/status && exit; done; exit 1",
    "cat /proc/$0/environ",
    "ls /proc/$0/root/",
    "ls /proc/$0/fd/",
    "echo 1000 >/proc/$0/oom_score_adj",
    "prlimit --pid $0 --nofile=64:64",
    "renice 19 $0",
];

/// Attacks the shim as a user, from the container `hostile`. Returns if that succeeded, and the errors.
fn attack(pod: &Pod, shim: &Shim, attack: &str, user: &str) -> (bool, String) {
    let (pid, user, errors) = (shim.container.pid_in_pod(), pod::as_user(user).join(" "), pod.file("errors"));
    let script = format!("export LC_ALL=C; exec {user} sh -c '{attack}' {pid} 2>{}", errors.display());
    let status = pod.exec("hostile", &script).wait();
    (status.success(), std::fs::read_to_string(errors).unwrap())
}

#[test]
fn payload_of_other_user_cannot_attack_the_shim() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch_as(SHIM_USER, &proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    let hostile = pod.payload("hostile", 0);
    for script in ATTACKS {
        let (succeeded, errors) = attack(&pod, &shim, script, PAYLOAD_USER);
        let is_denied = errors.contains("Operation not permitted") || errors.contains("Permission denied");
        assert!(!succeeded && is_denied, "{script}: {errors}");
    }
    hostile.finish();
    ends_with(main, &proxy, shim);
}

#[test]
fn control_root_or_the_shims_user_can_attack_it() {
    let pod = Pod::new();
    let proxy = Proxy::new();
    let _hostile = pod.payload("hostile", 0);
    for script in ATTACKS {
        let shim = pod.watch_as(SHIM_USER, &proxy, &NEVER);
        // Root may lack CAP_SYS_RESOURCE, and Yama may forbid the user to trace.
        assert!(["0", SHIM_USER].iter().any(|user| attack(&pod, &shim, script, user).0), "{script}");
        if script.contains("STOP") {
            shim.resume();
        }
        shim.terminate();
    }
}

#[test]
fn stopped_shim_notices_payloads_end_when_continued() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch_as(SHIM_USER, &proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    let pid = shim.container.pid_in_pod();
    pod.run("hostile", &["sh", "-c", "kill -s STOP $0", &pid]).wait();
    main.finish();
    assert_eq!(proxy.requests().len(), 0, "the proxy runs on, as in a pod without istio-aux");
    shim.resume();
    proxy.assert_quit_once(shim);
}

#[test]
fn shim_killed_by_root_ends_proxy_after_restart() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch_as(SHIM_USER, &proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    let pid = shim.container.pid_in_pod();
    let mut hostile = pod.run("hostile", &["sh", "-c", "kill -s KILL $0", &pid]);
    hostile.wait();
    shim.end();
    let mut shim = pod.watch_as(SHIM_USER, &proxy, &NEVER);
    shim.until_logged("container started container=main");
    main.finish();
    // What it has found may be an exec session's: only the kubelet knows.
    pod.report("main=0");
    shim.until_logged("istio-proxy ended");
    let _ = shim.terminate();
    assert_eq!(proxy.requests().len(), 1);
}

#[test]
fn shim_traced_by_root_goes_on() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = pod.watch_as(SHIM_USER, &proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    let (pid, output) = (shim.container.pid_in_pod(), pod.file("trace"));
    let _tracer = pod.exec("main", &format!("exec strace -o {} -p {pid}", output.display()));
    pod::until("strace", || pod::status_field(&shim.container.init(), "TracerPid") != "0");
    ends_with(main, &proxy, shim);
}

#[test]
fn flood_of_forks_delays_no_exit() {
    let (pod, proxy, mut shim) = announced(&BOTH);
    let flood = pod.start("flood", "while :; do (:) & (:) & (:) & (:) & wait; done");
    flood.init();
    for name in ["main", "metrics"] {
        let payload = shim.payload(&pod, name, 0);
        assert_eq!(proxy.requests().len(), 0);
        payload.finish();
        shim.until_logged(&format!("container exited container={name} {}", code(0)));
    }
    shim.until_logged("istio-proxy ended");
    flood.kill();
    assert_eq!((shim.terminate().0, proxy.requests().len()), (Some(0), 1));
}

#[test]
fn flood_of_announcements_has_bounded_wake_ups() {
    let (pod, proxy, mut shim) = announced(&NEVER);
    let flood = pod.start("flood", "while :; do echo 127.0.0.1 x >/etc/hosts; chmod 644 /etc/hosts; done");
    // Without a process for each.
    let echoes = pod.exec("flood", "while :; do echo 127.0.0.1 x >/etc/hosts; done");
    flood.init();
    let main = shim.payload(&pod, "main", 0);
    let before = shim.wake_ups();
    sleep(Duration::from_secs(3));
    let count = shim.wake_ups() - before;
    assert!(count < 3 * 1000, "{count} times in 3 s");
    main.finish();
    shim.until_logged("istio-proxy ended");
    assert_eq!(proxy.requests().len(), 1);
    echoes.kill();
    flood.kill();
    assert_eq!(shim.terminate().0, Some(0));
}

#[test]
fn shim_at_its_process_limit_goes_on() {
    let (pod, proxy) = pod_with_proxy();
    // A limit of its user, in place of one of the pod that a payload has used up.
    let limited = ["setpriv", "--reuid", "65020", "--clear-groups", "prlimit", "--nproc=1:1"];
    let mut shim = pod.watch_under(&limited, &proxy, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    ends_with(main, &proxy, shim);
}
