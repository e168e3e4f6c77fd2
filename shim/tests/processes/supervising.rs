//! `aux-shim supervise` as the parent of a stand-in for pilot-agent: in a PID namespace that the containers share, and
//! beside wrapped containers.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::pod::{self, Pod};
use rustix::process::{Pid, Signal, kill_process};

/// A stand-in for pilot-agent: a script that ends with a code once its port is told to.
struct Agent {
    port: String,
    script: String,
    gate: PathBuf,
    asked: Arc<Mutex<u32>>,
}

impl Agent {
    fn new(gate: PathBuf, code: i32) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let asked = Arc::new(Mutex::new(0));
        let (heard, opened) = (asked.clone(), gate.clone());
        pod::accept_all(listener, move |line| {
            if pod::is_quit(&line) {
                *heard.lock().unwrap() += 1;
                fs::write(&opened, "").unwrap();
            }
        });
        let script = format!("while ! [ -e {} ]; do sleep 0.01; done; exit {code}", gate.display());
        Self { port, script, gate, asked }
    }

    fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }

    /// Ends it though nobody asked.
    fn end_unasked(&self) {
        fs::write(&self.gate, "").unwrap();
    }
}

fn awaiting_main<'a>(policy: &'a str, port: &'a str) -> Vec<&'a str> {
    vec!["--await=main", "--restart-policy", policy, "--status-port", port]
}

#[test]
fn the_agent_is_asked_when_the_payload_has_ended_and_its_status_is_passed_on() {
    for code in [0, 3] {
        let pod = Pod::new();
        let agent = Agent::new(pod.file("quit"), code);
        let mut shim = pod.supervise(&awaiting_main("OnFailure", &agent.port), &agent.script);
        for (attempt, main_code) in [(1, 1), (2, 0)] {
            let main = pod.payload("main", main_code);
            shim.until_logged_times(attempt, "container started container=main");
            assert_eq!(agent.asked(), 0);
            main.finish();
        }
        let (status, log) = shim.end();
        assert_eq!((status, agent.asked()), (Some(code), 1), "{log}");
        assert_eq!(log.matches(&format!("istio-proxy ended code={code} after=")).count(), 1, "{log}");
        assert!(!log.contains("container=istio-proxy"), "its own container is not watched: {log}");
    }
}

#[test]
fn an_end_with_0_that_nobody_asked_for_is_a_failure_where_that_brings_it_back() {
    for (policy, expected) in [("OnFailure", 1), ("Never", 0)] {
        let pod = Pod::new();
        let agent = Agent::new(pod.file("quit"), 0);
        let shim = pod.supervise(&awaiting_main(policy, &agent.port), &agent.script);
        agent.end_unasked();
        let (status, log) = shim.end();
        assert_eq!((status, agent.asked()), (Some(expected), 0), "{policy}: {log}");
        assert!(log.contains("WARN istio-proxy ended before the awaited containers"), "{log}");
    }
}

#[test]
fn an_agent_that_no_port_of_answers_gets_sigterm_and_that_is_no_failure() {
    for (agent, expected) in [("trap 'exit 4' TERM; while :; do sleep 0.01; done", 4), ("exec sleep 1000", 0)] {
        let pod = Pod::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // A port that is given back may be another test's listener at once; a client's own port is taken and nobody listens there.
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let closed = client.local_addr().unwrap().port().to_string();
        let mut shim = pod.supervise(&awaiting_main("Never", &closed), agent);
        let main = pod.payload("main", 0);
        shim.until_logged("container started container=main");
        main.finish();
        let (status, log) = shim.end();
        assert_eq!(status, Some(expected), "{log}");
        assert_eq!(log.matches("sent SIGTERM to istio-proxy").count(), 1, "{log}");
    }
}

#[test]
fn the_kubelets_sigterm_reaches_the_agent() {
    let pod = Pod::new();
    let agent = Agent::new(pod.file("quit"), 0);
    let ready = pod.file("ready");
    let script = format!("trap 'exit 6' TERM; touch {}; while :; do sleep 0.01; done", ready.display());
    let shim = pod.supervise(&awaiting_main("Never", &agent.port), &script);
    pod::until("the agent's trap", || ready.exists());
    shim.container.signal("TERM");
    assert_eq!(shim.end().0, Some(6));
}

#[test]
fn a_supervisor_that_is_started_again_knows_what_has_ended() {
    let pod = Pod::new();
    let agent = Agent::new(pod.file("quit"), 0);
    let state = pod.file("state").display().to_string();
    let arguments = [&awaiting_main("OnFailure", &agent.port)[..], &["--await=metrics", "--state", &state]].concat();
    let mut shim = pod.supervise(&arguments, &agent.script);
    let (main, metrics) = (pod.payload("main", 0), pod.payload("metrics", 0));
    shim.until_logged("container started container=main");
    shim.until_logged("container started container=metrics");
    main.finish();
    shim.until_logged("container exited container=main code=0");
    shim.kill();
    let mut shim = pod.supervise(&arguments, &agent.script);
    shim.until_logged("started again: took up what was seen before");
    assert_eq!(agent.asked(), 0);
    metrics.finish();
    let (status, log) = shim.end();
    assert_eq!((status, agent.asked()), (Some(0), 1), "{log}");
}

/// A wrapped container outside any namespace, that ends with a code when its gate is opened.
fn wrapped(locks: &Path, name: &str, code: i32) -> (Child, PathBuf) {
    let gate = locks.with_extension(format!("{name}-gate"));
    let _ = fs::remove_file(&gate);
    let script = format!("while ! [ -e {} ]; do sleep 0.01; done; exit {code}", gate.display());
    let mut wrapper = Command::new(env!("CARGO_BIN_EXE_aux-shim"));
    wrapper.args(["wrap", "--name", name, "--locks"]).arg(locks).args(["--", "sh", "-c", &script]);
    (wrapper.stdin(Stdio::null()).spawn().unwrap(), gate)
}

#[test]
fn wrapped_containers_are_awaited_by_their_locks() {
    let pod = Pod::new();
    let agent = Agent::new(pod.file("quit"), 0);
    let locks = pod.file("locks");
    fs::create_dir(&locks).unwrap();
    let folder = format!("--locks={}", locks.display());
    // One has come and gone before anybody watched.
    let (mut early, gate) = wrapped(&locks, "early", 0);
    fs::write(gate, "").unwrap();
    early.wait().unwrap();
    let arguments = [&awaiting_main("OnFailure", &agent.port)[..], &["--await=early", &folder]].concat();
    let mut shim = pod.supervise(&arguments, &agent.script);
    shim.until_logged("container exited container=early code=0");
    // One is killed as a whole, is retried and fails, is retried and succeeds.
    let (mut main, _) = wrapped(&locks, "main", 0);
    shim.until_logged("container started container=main");
    kill_process(Pid::from_child(&main), Signal::KILL).unwrap();
    main.wait().unwrap();
    shim.until_logged("container exited container=main code=137");
    for code in [5, 0] {
        let (mut main, gate) = wrapped(&locks, "main", code);
        shim.until_logged_times(if code == 5 { 2 } else { 3 }, "container started container=main");
        assert_eq!(agent.asked(), 0);
        fs::write(gate, "").unwrap();
        main.wait().unwrap();
        shim.until_logged(&format!("container exited container=main code={code}"));
    }
    let (status, log) = shim.end();
    assert_eq!((status, agent.asked()), (Some(0), 1), "{log}");
}
