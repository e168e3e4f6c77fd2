//! `aux-shim wrap` as the parent of real commands.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::pod::until;

/// A wrapper of a command, with its locks in this folder.
fn wrap(locks: &Path, command: &[&str]) -> Command {
    let mut wrapper = Command::new(env!("CARGO_BIN_EXE_aux-shim"));
    wrapper.args(["wrap", "--name=main"]).arg(format!("--locks={}", locks.display())).arg("--").args(command);
    wrapper
}

fn run(command: &[&str]) -> (Output, String) {
    let locks = tempfile::tempdir().unwrap();
    let output = wrap(locks.path(), command).output().unwrap();
    (output, verdict(&locks))
}

/// The last line of the container's file.
fn verdict(locks: &TempDir) -> String {
    let text = fs::read_to_string(locks.path().join("main")).unwrap();
    text.lines().last().unwrap().to_owned()
}

/// Reads until there is a whole line.
fn line(from: &mut impl Read) -> String {
    let mut line = String::new();
    let mut byte = [0];
    while !line.ends_with('\n') {
        from.read_exact(&mut byte).unwrap();
        line.push(char::from(byte[0]));
    }
    line
}

#[test]
fn the_exit_status_is_the_commands() {
    for code in [0, 1, 7, 126, 127, 255] {
        let (output, verdict) = run(&["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(verdict, format!("exited {code}"));
    }
}

#[test]
fn it_dies_by_the_signal_that_ended_the_command() {
    for (name, signal) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2), ("ABRT", 6)] {
        let (output, verdict) = run(&["sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!((output.status.signal(), verdict), (Some(signal), format!("exited {}", 128 + signal)), "{name}");
    }
}

#[test]
fn as_pid_1_its_exit_status_tells_the_signal() {
    for (name, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let locks = tempfile::tempdir().unwrap();
        let wrapper = wrap(locks.path(), &["sh", "-c", &format!("kill -{name} $$")]);
        let mut namespace = Command::new("unshare");
        namespace.args(["--pid", "--fork", "--mount-proc"]).arg(wrapper.get_program()).args(wrapper.get_args());
        assert_eq!(namespace.status().unwrap().code(), Some(code), "{name} (as root)");
    }
}

#[test]
fn what_cannot_be_run_is_127_or_126_and_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "no program\n").unwrap();
    let text = text.to_str().unwrap();
    for (command, code) in [("/no/such", 127), ("no-such-command", 127), (text, 126), ("/", 126)] {
        let (output, verdict) = run(&[command]);
        assert_eq!((output.status.code(), verdict), (Some(code), format!("exited {code}")), "{command}");
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with(&format!("aux-shim: {command}: ")) && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn without_its_locks_the_command_runs_all_the_same() {
    let output = wrap(Path::new("/no/such"), &["sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("WARN the pod's proxy will not be ended"), "{line}");
}

/// A wrapped shell script that says `ready` and then each signal it gets.
fn listening(locks: &Path, signals: &str) -> Child {
    let traps: Vec<String> = signals.split(' ').map(|name| format!("trap 'echo {name}' {name}; ")).collect();
    let traps = traps.concat();
    // Until the wrapper has gone, by whatever signal.
    let script = format!("{traps} echo ready; while kill -0 $PPID 2>/dev/null; do sleep 0.01; done");
    let mut wrapper = wrap(locks, &["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(wrapper.stdout.as_mut().unwrap()), "ready\n");
    wrapper
}

#[test]
fn signals_are_passed_on() {
    let signals = [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ];
    let locks = tempfile::tempdir().unwrap();
    let mut wrapper = listening(locks.path(), &signals.map(|(_, name)| name).join(" "));
    for (signal, name) in signals {
        kill_process(Pid::from_child(&wrapper), signal).unwrap();
        assert_eq!(line(wrapper.stdout.as_mut().unwrap()), format!("{name}\n"));
    }
    kill_process(Pid::from_child(&wrapper), Signal::KILL).unwrap();
    wrapper.wait().unwrap();
}

#[test]
fn signals_that_are_its_own_are_not_passed_on() {
    let locks = tempfile::tempdir().unwrap();
    let mut wrapper = listening(locks.path(), "URG PIPE USR1");
    for signal in [Signal::URG, Signal::PIPE, Signal::CHILD, Signal::USR1] {
        kill_process(Pid::from_child(&wrapper), signal).unwrap();
    }
    assert_eq!(line(wrapper.stdout.as_mut().unwrap()), "USR1\n", "the first that is passed on");
    kill_process(Pid::from_child(&wrapper), Signal::KILL).unwrap();
    wrapper.wait().unwrap();
}

#[test]
fn orphans_are_reaped() {
    let locks = tempfile::tempdir().unwrap();
    // The inner shell leaves a child behind, which ends at once.
    let script = "sh -c 'true & echo $!'; while :; do sleep 0.01; done";
    let mut wrapper = wrap(locks.path(), &["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let orphan = line(wrapper.stdout.as_mut().unwrap());
    until("the orphan's reaping", || !Path::new("/proc").join(orphan.trim()).exists());
    kill_process(Pid::from_child(&wrapper), Signal::TERM).unwrap();
    wrapper.wait().unwrap();
}

#[test]
fn standard_input_and_the_environment_pass_through() {
    let locks = tempfile::tempdir().unwrap();
    let mut wrapper = wrap(locks.path(), &["sh", "-c", "cat; printf %s \"$GREETING\""]);
    wrapper.env("GREETING", "hello").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut wrapper = wrapper.spawn().unwrap();
    wrapper.stdin.take().unwrap().write_all(b"from outside, ").unwrap();
    assert_eq!(wrapper.wait_with_output().unwrap().stdout, b"from outside, hello");
}

#[test]
fn the_commands_group_has_the_terminal() {
    let locks = tempfile::tempdir().unwrap();
    // Field 8 of stat is the terminal's foreground group, field 5 the process' own.
    let script = r#"cut -d " " -f 5,8 /proc/$$/stat; trap "echo interrupted; exit 5" INT; echo ready; while :; do sleep 0.01; done"#;
    let wrapper = wrap(locks.path(), &["sh", "-c", script]);
    let words: Vec<String> = std::iter::once(wrapper.get_program())
        .chain(wrapper.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")))
        .collect();
    // `script` gives its command a terminal of its own.
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script (bsdutils) runs");
    let output = terminal.stdout.as_mut().unwrap();
    let groups = line(output);
    let groups: Vec<&str> = groups.split_whitespace().collect();
    assert_eq!(groups[0], groups[1], "the command's group is the terminal's");
    assert_eq!(line(output).trim(), "ready");
    // Control-C.
    terminal.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    let mut rest = String::new();
    terminal.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest.matches("interrupted").count(), 1, "{rest}");
    assert_eq!(terminal.wait().unwrap().code(), Some(5));
}
