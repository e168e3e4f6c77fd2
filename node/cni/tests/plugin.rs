//! The plugin's commands with an agent, with one that closes the connection, and without one.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cni::input::Environment;
use cni::plugin::run;
use serde_json::{Value, json};

/// The wait for an agent that does not exist, and for one that answers.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(1);

fn environment(command: &str) -> Environment {
    Environment {
        command: command.into(),
        container_id: "abc".into(),
        netns: "/run/netns/x".into(),
        args: "K8S_POD_NAMESPACE=team;K8S_POD_NAME=job;K8S_POD_UID=u1".into(),
    }
}

fn result() -> Value {
    json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.7/24", "gateway": "10.0.0.1"}]})
}

fn configuration(run_dir: &Path) -> String {
    json!({"cniVersion": "0.4.0", "name": "n", "type": "istio-aux-cni", "runDir": run_dir, "prevResult": result(),
        "runtimeConfig": {"dns": {"Servers": ["10.96.0.10"], "Searches": ["svc.cluster.local"], "Options": null}}})
    .to_string()
}

/// Runs an agent that takes one connection for each response, and returns the requests. `None` closes the connection.
fn agent(run_dir: &Path, responses: Vec<Option<&'static str>>) -> JoinHandle<Vec<Value>> {
    let listener = UnixListener::bind(run_dir.join("node.sock")).unwrap();
    thread::spawn(move || {
        let taken = responses.into_iter().map(|response| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            if let Some(response) = response {
                writeln!(stream, "{response}").unwrap();
            }
            serde_json::from_str(&line).unwrap()
        });
        taken.collect()
    })
}

fn error(result: Result<String, cni::failure::Failure>) -> Value {
    serde_json::from_str(&result.unwrap_err().to_json()).unwrap()
}

#[test]
fn add_with_agent_prints_previous_result() {
    let directory = tempfile::tempdir().unwrap();
    let agent = agent(directory.path(), vec![None, Some("{}")]);
    let output = run(&environment("ADD"), &configuration(directory.path()), LONG).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&output).unwrap(), result());
    let request = json!({
        "command": "add", "id": "abc", "netns": "/run/netns/x", "namespace": "team", "name": "job", "uid": "u1",
        "addresses": ["10.0.0.7"], "cgroupPath": "",
        "dns": {"servers": ["10.96.0.10"], "searches": ["svc.cluster.local"], "options": []},
    });
    assert_eq!(agent.join().unwrap(), [request.clone(), request]);
}

#[test]
fn rejected_add_fails_with_agents_reason() {
    let directory = tempfile::tempdir().unwrap();
    let agent = agent(directory.path(), vec![Some(r#"{"error": "no certificate"}"#)]);
    let error = error(run(&environment("ADD"), &configuration(directory.path()), LONG));
    assert_eq!((&error["code"], &error["msg"]), (&json!(101), &json!("istio-aux: no certificate")));
    agent.join().unwrap();
}

#[test]
fn add_without_agent_fails_with_try_again() {
    let directory = tempfile::tempdir().unwrap();
    let error = error(run(&environment("ADD"), &configuration(directory.path()), SHORT));
    assert_eq!(error["code"], 11);
    assert!(error["msg"].as_str().unwrap().contains("node.sock"), "{error}");
}

#[test]
fn delete_without_agent_writes_tombstone() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run(&environment("DEL"), &configuration(directory.path()), SHORT), Ok(String::new()));
    assert!(directory.path().join("tombstones/abc").is_file());
}

#[test]
fn delete_with_agent_writes_no_tombstone() {
    let directory = tempfile::tempdir().unwrap();
    let agent = agent(directory.path(), vec![Some("{}")]);
    assert_eq!(run(&environment("DEL"), &configuration(directory.path()), LONG), Ok(String::new()));
    assert_eq!(agent.join().unwrap(), [json!({"command": "delete", "id": "abc"})]);
    assert!(!directory.path().join("tombstones").exists());
}

#[test]
fn delete_with_invalid_input_succeeds() {
    for input in ["", "{", "[]"] {
        assert_eq!(run(&environment("DEL"), input, SHORT), Ok(String::new()), "{input}");
    }
    let strange = Environment { container_id: "../../etc".into(), ..environment("DEL") };
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run(&strange, &configuration(directory.path()), SHORT), Ok(String::new()));
    assert!(!directory.path().join("tombstones").exists());
}

#[test]
fn check_returns_agents_answer() {
    let directory = tempfile::tempdir().unwrap();
    let agent = agent(directory.path(), vec![Some("{}"), Some(r#"{"error": "the proxy is not ready"}"#)]);
    let check = || run(&environment("CHECK"), &configuration(directory.path()), LONG);
    assert_eq!(check(), Ok(String::new()));
    assert_eq!(error(check())["msg"], "istio-aux: the proxy is not ready");
    agent.join().unwrap();
}

#[test]
fn status_and_gc_need_the_agent() {
    for (command, code, asked) in [("STATUS", 50, "status"), ("GC", 11, "collect")] {
        let directory = tempfile::tempdir().unwrap();
        let called = || run(&environment(command), &configuration(directory.path()), LONG);
        assert_eq!(error(called())["code"], code, "{command}");
        let agent = agent(directory.path(), vec![Some("{}")]);
        assert_eq!(called(), Ok(String::new()), "{command}");
        assert_eq!(agent.join().unwrap(), [json!({"command": asked})]);
    }
}

#[test]
fn version_lists_versions_and_unknown_command_fails() {
    let output: Value = serde_json::from_str(&run(&environment("VERSION"), "", SHORT).unwrap()).unwrap();
    assert!(output["supportedVersions"].as_array().unwrap().contains(&json!("1.0.0")));
    let error = error(run(&environment("OTHER"), "", SHORT));
    assert_eq!((&error["code"], &error["msg"]), (&json!(100), &json!("istio-aux: unknown CNI_COMMAND \"OTHER\"")));
}
