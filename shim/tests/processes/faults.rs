//! Faults by the kernel: errors, unusual processes, and late events.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use super::pod::{
    self, ACCEPTED, Agent, BOTH, NEVER, NOTHING, ON_FAILURE, Pod, Proxy, Shim, announced, code, copy_program,
    pod_with_proxy,
};

/// Starts a shim whose calls strace writes to the pod's file `strace`, and injects this into.
fn watch_traced(pod: &Pod, proxy: &Proxy, calls: &str, inject: &[&str]) -> Shim {
    let (output, trace) = (pod.file("strace").display().to_string(), format!("trace={calls}"));
    // The shim is the container's init process, and strace its grandchild.
    // By seccomp, strace stops it at these calls only: stopped at each, it would see starts too late.
    let strace = ["strace", "-D", "-f", "--seccomp-bpf", "-o", &output, "-e", &trace];
    pod.watch_under(&[&strace, inject].concat(), proxy, &BOTH)
}

/// Starts a shim whose calls fail as strace injects it.
fn watch_failing(pod: &Pod, proxy: &Proxy, call: &str, injected: &str) -> Shim {
    watch_traced(pod, proxy, call, &["-e", &format!("inject={call}:{injected}")])
}

#[test]
fn shim_connects_to_loopback_and_opens_no_port() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = watch_traced(&pod, &proxy, "%network", &[]);
    shim.until_logged("container started container=istio-proxy");
    for name in ["main", "metrics"] {
        shim.payload(&pod, name, 0).finish();
    }
    proxy.assert_quit_once(shim);
    let calls = fs::read_to_string(pod.file("strace")).unwrap();
    let (connects, others): (Vec<_>, Vec<_>) = calls.lines().partition(|call| call.contains(" connect("));
    assert!(!connects.is_empty() && connects.iter().all(|call| call.contains("(\"127.0.0.1\")")), "{calls}");
    let opens = |call: &&str| [" bind(", " listen(", " accept"].iter().any(|name| call.contains(name));
    assert!(!others.iter().any(opens), "{calls}");
}

#[test]
fn proxy_quits_after_payload_without_pidfds() {
    // As before Linux 5.3; for flags that a kernel does not know; by seccomp profiles of that time.
    for error in ["ENOSYS", "EINVAL", "EPERM"] {
        let (pod, proxy) = pod_with_proxy();
        let mut shim = watch_failing(&pod, &proxy, "pidfd_open", &format!("error={error}"));
        shim.until_logged("container started container=istio-proxy");
        let (main, metrics) = (shim.payload(&pod, "main", 0), shim.payload(&pod, "metrics", 0));
        only_main_runs(&mut shim, &proxy, metrics);
        main.finish();
        let log = proxy.assert_quit_once(shim);
        assert!(log.contains("container exited container=main code=unknown"), "{error}: {log}");
    }
}

/// Lets `metrics` end, and checks that `main` counts as running. A shim that has noticed the end has checked both.
fn only_main_runs(shim: &mut Shim, proxy: &Proxy, metrics: pod::Payload) {
    metrics.finish();
    shim.until_logged("container exited container=metrics");
    assert!(!shim.log().contains("container exited container=main"), "{}", shim.log());
    assert_eq!(proxy.requests(), NOTHING, "main runs");
}

#[test]
fn payload_without_pidfd_is_awaited() {
    for error in ["ENOMEM", "EMFILE"] {
        let (pod, proxy) = pod_with_proxy();
        // The first is the proxy's.
        let mut shim = watch_failing(&pod, &proxy, "pidfd_open", &format!("error={error}:when=2"));
        shim.until_logged("container started container=istio-proxy");
        let main = shim.payload(&pod, "main", 0);
        let metrics = shim.payload(&pod, "metrics", 0);
        let calls = fs::read_to_string(pod.file("strace")).unwrap();
        assert_eq!(calls.matches("(INJECTED)").count(), 1, "{calls}");
        only_main_runs(&mut shim, &proxy, metrics);
        main.finish();
        proxy.assert_quit_once(shim);
    }
}

#[test]
fn proxy_quits_after_payload_without_inotify() {
    let (pod, proxy) = pod_with_proxy();
    let mut shim = watch_failing(&pod, &proxy, "inotify_init1", "error=EMFILE");
    shim.until_logged("no inotify: polling instead");
    shim.until_logged("container started container=istio-proxy");
    let (main, metrics) = (shim.payload(&pod, "main", 0), shim.payload(&pod, "metrics", 0));
    only_main_runs(&mut shim, &proxy, metrics);
    main.finish();
    proxy.assert_quit_once(shim);
}

/// Has a shim await `main` after something has happened to it, and then another shim, which has not seen it start.
fn is_awaited_across_a_restart(pod: &Pod, main: &pod::Container, happen: impl FnOnce(), end_main: impl FnOnce()) {
    let proxy = Proxy::started(pod);
    let mut shim = pod.watch(&proxy, &BOTH);
    let metrics = pod.payload("metrics", 0);
    for name in ["istio-proxy", "main", "metrics"] {
        shim.until_logged(&format!("container started container={name}"));
    }
    happen();
    only_main_runs(&mut shim, &proxy, metrics);
    shim.kill();
    let mut shim = pod.watch(&proxy, &BOTH);
    shim.until_logged("container started container=istio-proxy");
    assert_eq!(proxy.requests(), NOTHING, "main runs");
    assert!(fs::exists(format!("/proc/{}", main.init())).unwrap());
    end_main();
    // A process without its first thread has no mounts, so this shim does not know its container.
    pod.report("main=0,metrics=0");
    proxy.assert_quit_once(shim);
}

#[test]
fn process_with_non_utf8_name_is_awaited() {
    let pod = Pod::new();
    // The kernel cuts names at 15 bytes, in the middle of a character.
    let (shell, gate) = (pod.file("обработка"), pod.file("gate"));
    copy_program("/bin/sh", &shell);
    let wait = format!("while ! [ -e {} ]; do sleep 0.01; done", gate.display());
    let main = pod.run("main", &[shell.to_str().unwrap(), "-c", &wait]);
    let comm = format!("/proc/{}/comm", main.init());
    pod::until("the name", || fs::read(&comm).is_ok_and(|name| String::from_utf8(name).is_err()));
    is_awaited_across_a_restart(&pod, &main, || {}, || fs::write(gate, "").unwrap());
}

/// A program whose first thread ends when a file exists, while another thread waits for a second file.
const LEADERLESS: &str = "
#include <pthread.h>
#include <unistd.h>
static void *rest(void *gate) {
    while (access(gate, F_OK) != 0) usleep(10000);
    _exit(CODE);
}
int main(int count, char **words) {
    pthread_t thread;
    pthread_create(&thread, NULL, rest, words[2]);
    while (access(words[1], F_OK) != 0) usleep(10000);
    pthread_exit(NULL);
}
";

/// Compiles such a program. Returns it, with its two files.
fn leaderless(pod: &Pod, code: u8) -> [String; 3] {
    let [source, program, first_gate, gate] =
        ["leaderless.c", "leaderless", "first-gate", "gate"].map(|name| pod.file(name).display().to_string());
    fs::write(&source, LEADERLESS).unwrap();
    let code = format!("-DCODE={code}");
    assert!(Command::new("cc").args(["-pthread", &code, "-o", &program, &source]).status().unwrap().success());
    [program, first_gate, gate]
}

/// The first thread's own code is 0.
#[test]
fn code_of_a_process_without_its_first_thread_is_known() {
    let (pod, _proxy, mut shim) = announced(&NEVER);
    let words = leaderless(&pod, 1);
    let mut main = shim.observe(&pod, "main", || pod.run("main", &words.each_ref().map(String::as_str)));
    fs::write(&words[1], "").unwrap();
    main.until_zombie();
    fs::write(&words[2], "").unwrap();
    assert_eq!(main.wait().code(), Some(1), "its parent knows");
    shim.until_logged(&format!("container exited container=main {}", code(1)));
}

#[test]
fn process_without_its_first_thread_is_awaited() {
    let pod = Pod::new();
    let words = leaderless(&pod, 0);
    let main = pod.run("main", &words.each_ref().map(String::as_str));
    let [_, first_gate, gate] = words;
    let lose_leader = || {
        fs::write(&first_gate, "").unwrap();
        main.until_zombie();
    };
    is_awaited_across_a_restart(&pod, &main, lose_leader, || fs::write(gate, "").unwrap());
}

#[test]
fn signals_are_forwarded_while_exit_code_is_awaited() {
    let pod = Pod::new();
    let seen = pod.file("seen");
    let agent = Agent::with_script(&pod, &format!("trap 'touch {}' WINCH", seen.display()), 0);
    let mut shim = pod.supervise(&agent, &ON_FAILURE);
    let main = shim.payload(&pod, "main", 0);
    main.container.stop_parent();
    main.release();
    main.container.until_zombie();
    shim.container.signal("WINCH");
    pod::until("the signal", || seen.exists());
    // However late the code is.
    sleep(Duration::from_secs(2));
    assert_eq!(agent.quit_requests(), 0, "the code may be another one than 0");
    assert!(!shim.log().contains("container exited"), "{}", shim.log());
    main.container.continue_parent();
    shim.until_logged(&format!("container exited container=main {}", code(0)));
    pod.report_unknown("main=0");
    agent.assert_quit_once(shim);
}

#[test]
fn signal_while_answer_is_awaited_changes_nothing() {
    let pod = Pod::new();
    let (listener, port) = pod::listen();
    let agent = Agent::new(&pod, 7).with_port(port);
    let (asked, heard) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    pod::serve(listener, move |_, stream| {
        asked.send(()).unwrap();
        resumed.recv().unwrap();
        stream.write_all(ACCEPTED).unwrap();
    });
    let mut shim = pod.supervise(&agent, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    main.finish();
    heard.recv().unwrap();
    for _ in 0..20 {
        shim.container.signal("CHLD");
        sleep(Duration::from_millis(5));
    }
    resume.send(()).unwrap();
    shim.until_logged("asked istio-proxy to quit endpoint=");
    agent.end_unrequested();
    let (status, log) = shim.end();
    assert_eq!(status, Some(7), "{log}");
    assert!(!log.contains("sent a signal"), "{log}");
}

#[test]
fn agent_that_rejects_quit_gets_sigterm() {
    let pod = Pod::new();
    let (listener, port) = pod::listen();
    pod::serve(listener, |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    });
    let agent = Agent::with_script(&pod, "trap 'exit 9' TERM", 0).with_port(port);
    let mut shim = pod.supervise(&agent, &NEVER);
    let main = shim.payload(&pod, "main", 0);
    main.finish();
    shim.until_logged("istio-proxy rejected the quit request");
    let (status, log) = shim.end();
    assert_eq!(status, Some(9), "{log}");
    assert_eq!(log.matches("sent a signal to istio-proxy signal=SIGTERM").count(), 1, "{log}");
}
