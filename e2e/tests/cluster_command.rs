//! Refusals of the one-node cluster's command: one line for what is wrong, one for what to do. Needs no cluster.

use std::path::Path;
use std::process::{Command, Output};

use e2e::command::write_program;

const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/cluster/cluster");

/// Returns the lines of standard error.
fn messages(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}

/// Runs the command with a `uname` and an `id` that answer as given.
fn on_machine(system: &str, machine: &str, user: &str, arguments: &[&str]) -> Output {
    let directory = std::env::temp_dir().join(format!("istio-aux-{}-{system}-{machine}-{user}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the stand-ins");
    stand_in(&directory, "uname", &format!("case $1 in -s) echo {system} ;; -m) echo {machine} ;; esac"));
    stand_in(&directory, "id", &format!("echo {user}"));
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new(CLUSTER).args(arguments).env("PATH", path).output().expect("the command runs");
    std::fs::remove_dir_all(&directory).expect("the stand-ins are removed");
    output
}

fn stand_in(directory: &Path, name: &str, script: &str) {
    write_program(&directory.join(name), &format!("#!/bin/sh\n{script}\n"));
}

#[test]
fn unsupported_machine_or_user_is_refused() {
    let cases = [
        ("Darwin", "arm64", "501", "the one-node cluster needs Linux, and this is Darwin", "CLUSTER=current"),
        ("Linux", "aarch64", "0", "the one-node cluster is built for x86_64, and this is aarch64", "CLUSTER=current"),
        (
            "Linux",
            "x86_64",
            "1000",
            "the one-node cluster needs root, for mounts, network namespaces and iptables",
            "sudo",
        ),
    ];
    for (system, machine, user, wrong, next) in cases {
        let output = on_machine(system, machine, user, &["up"]);
        let lines = messages(&output);
        assert_eq!(output.status.code(), Some(1), "{lines:?}");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], format!("cluster: {wrong}"));
        assert!(lines[1].starts_with("  next: ") && lines[1].contains(next), "{lines:?}");
    }
}

#[test]
fn unknown_command_ends_with_2_and_the_usage() {
    let output = Command::new(CLUSTER).arg("upp").output().expect("the command runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(messages(&output)[0].starts_with("usage: "));
}

#[test]
fn unknown_component_is_refused_with_the_list_of_known_ones() {
    let output = on_machine("Linux", "x86_64", "0", &["build", "training"]);
    let lines = messages(&output);
    assert_eq!(output.status.code(), Some(1), "{lines:?}");
    assert_eq!(lines[0], "cluster: there is no component 'training'");
    assert!(lines[1].starts_with("  next: ") && lines[1].contains(" training-operator "), "{lines:?}");
}

/// Needs root, and what `make cluster-up` installs.
#[cfg(feature = "one-node")]
#[test]
fn pods_reach_each_other_where_forward_drops() {
    for family in ["ipv4", "ipv6"] {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../hack/cluster/tests/forwarding");
        let output = Command::new(script).arg(family).output().expect("the script runs");
        assert!(output.status.success(), "{family}: {:?}", messages(&output));
    }
}
