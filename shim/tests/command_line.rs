//! The binary as a process: exit statuses, and what it prints.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn aux_shim(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aux-shim"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    aux_shim(arguments).output().unwrap()
}

#[test]
fn invalid_arguments_exit_with_2_and_one_line() {
    for arguments in [&[][..], &["sleep"], &["watch", "--await", "a"], &["start-after", "--argument=a"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("aux-shim: ") && text.lines().count() == 1, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_and_version_are_printed_with_0() {
    for (argument, expected) in [("--help", "usage: aux-shim watch"), ("--version", env!("CARGO_PKG_VERSION"))] {
        let output = run(&[argument]);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().contains(expected), "{argument}");
    }
}

#[test]
fn sigterm_exits_at_once_with_0() {
    let mut shim = aux_shim(&["watch", "--await=never-there", "--restart-policy=Never"]);
    let mut shim = shim.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(shim.stderr.take().unwrap()).lines().map_while(Result::ok);
    let is_watching = log.any(|line| line.contains(" INFO watching await=never-there "));
    kill(Pid::from_raw(shim.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(is_watching);
    assert_eq!(shim.wait().unwrap().code(), Some(0));
}
