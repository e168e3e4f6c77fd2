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
    with_environment(system, machine, user, arguments, &[])
}

fn with_environment(
    system: &str,
    machine: &str,
    user: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Output {
    let name = [system, machine, user, &arguments.join("-")].join("-");
    let folder = std::env::temp_dir().join(format!("istio-aux-machine-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the stand-ins");
    stand_in(&folder, "uname", &format!("case $1 in -s) echo {system} ;; -m) echo {machine} ;; esac"));
    stand_in(&folder, "id", &format!("echo {user}"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(CLUSTER);
    command.args(arguments).envs(environment.iter().copied()).env("PATH", path);
    let output = command.output().expect("it runs");
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

#[test]
fn a_component_that_nobody_knows_is_refused_with_those_there_are() {
    let output = on_machine("Linux", "x86_64", "0", &["build", "katip"]);
    let lines = refusal(&output);
    assert_eq!(output.status.code(), Some(1), "{lines:?}");
    assert_eq!(lines[0], "cluster: there is no component 'katip'");
    assert!(lines[1].starts_with("  next: ") && lines[1].contains(" katib "), "{lines:?}");
}

#[test]
fn a_repository_that_cannot_be_cloned_is_named_with_the_variable_that_says_where_it_is() {
    let empty = std::env::temp_dir().join(format!("istio-aux-no-sources-{}", std::process::id()));
    let folder = empty.to_str().expect("its name is text");
    let sources = format!("file://{folder}");
    let environment = [("SOURCES", sources.as_str()), ("XDG_CACHE_HOME", folder), ("ISTIO_AUX_CLUSTER_STATE", folder)];
    let output = with_environment("Linux", "x86_64", "0", &["build", "jobset"], &environment);
    let lines = refusal(&output);
    std::fs::remove_dir_all(&empty).expect("what it wrote is removed");
    assert_eq!(output.status.code(), Some(1), "{lines:?}");
    let [.., wrong, next] = lines.as_slice() else { panic!("{lines:?}") };
    let repository = format!("jobset: {sources}/kubernetes-sigs/jobset has no tag v0.12.0");
    assert!(wrong.contains(&repository) && wrong.contains("SOURCES="), "{lines:?}");
    assert!(next.starts_with("  next: set SOURCES"), "{lines:?}");
}
