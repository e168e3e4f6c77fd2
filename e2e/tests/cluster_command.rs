//! The one-node cluster's command refuses in one line what it cannot do, with the next step. Needs no cluster.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/cluster");

/// What it says on standard error: lines of what is wrong and what to do.
fn refusal(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().map(str::to_owned).collect()
}

/// Runs it with a `uname` and an `id` that answer as given.
fn on_machine(system: &str, machine: &str, user: &str, arguments: &[&str]) -> Output {
    let folder =
        std::env::temp_dir().join(format!("istio-aux-machine-{}-{system}-{machine}-{user}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the stand-ins");
    stand_in(&folder, "uname", &format!("case $1 in -s) echo {system} ;; -m) echo {machine} ;; esac"));
    stand_in(&folder, "id", &format!("echo {user}"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new(CLUSTER).args(arguments).env("PATH", path).output().expect("it runs");
    std::fs::remove_dir_all(&folder).expect("the stand-ins are removed");
    output
}

fn stand_in(folder: &Path, name: &str, script: &str) {
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a stand-in is written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("a stand-in is a program");
}

#[test]
fn another_machine_or_user_is_refused_with_the_next_step() {
    let cases = [
        ("Darwin", "arm64", "501", "cluster: the one-node cluster needs Linux, and this is Darwin", "CLUSTER=current"),
        (
            "Linux",
            "aarch64",
            "0",
            "cluster: the one-node cluster is built for x86_64, and this is aarch64",
            "CLUSTER=current",
        ),
        (
            "Linux",
            "x86_64",
            "1000",
            "cluster: the one-node cluster needs root, for mounts, network namespaces and iptables",
            "sudo",
        ),
    ];
    for (system, machine, user, wrong, next) in cases {
        let output = on_machine(system, machine, user, &["up"]);
        let lines = refusal(&output);
        assert_eq!(output.status.code(), Some(1), "{lines:?}");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], wrong);
        assert!(lines[1].starts_with("  next: ") && lines[1].contains(next), "{lines:?}");
    }
}

#[test]
fn an_unknown_command_ends_with_2_and_the_usage() {
    let output = Command::new(CLUSTER).arg("upp").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(refusal(&output)[0].starts_with("usage: "));
}
