//! `aux-shim supervise` as the parent of real commands.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::pod::{SHIM, send, until};

// A shell starts what it puts into the background with SIGINT ignored, and a script cannot trap that.
const PARENT: [&str; 8] =
    ["env", "--default-signal", SHIM, "supervise", "--await=main", "--restart-policy=Never", "--report-only", "--"];

/// Returns a parent of a command.
fn parent(command: &[&str]) -> Command {
    let mut parent = Command::new(PARENT[0]);
    parent.args(&PARENT[1..]).args(command);
    parent
}

fn run(command: &[&str]) -> Output {
    parent(command).output().unwrap()
}

/// Reads a line.
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
fn exit_status_is_the_commands() {
    for code in [0, 1, 7, 126, 127, 255] {
        assert_eq!(run(&["sh", "-c", &format!("exit {code}")]).status.code(), Some(code));
    }
}

#[test]
fn parent_dies_by_the_commands_signal() {
    for (name, signal) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2), ("ABRT", 6)] {
        assert_eq!(run(&["sh", "-c", &format!("kill -{name} $$")]).status.signal(), Some(signal), "{name}");
    }
}

/// As where the runtime's reader of a container's log is gone.
#[test]
fn command_gets_no_signal_of_a_log_that_nobody_reads() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let script = "trap 'exit 13' PIPE; sleep 0.5; exit 7";
    let mut parent = parent(&["sh", "-c", script]).stderr(writer).spawn().unwrap();
    assert_eq!(parent.wait().unwrap().code(), Some(7));
}

/// Runs a script with its parent as PID 1. Returns the exit code.
fn run_as_pid_1(script: &str) -> Option<i32> {
    let mut namespace = Command::new("unshare");
    namespace.args(["--pid", "--fork", "--mount-proc"]).args(PARENT).args(["sh", "-c", script]);
    namespace.status().unwrap().code()
}

#[test]
fn parent_as_pid_1_exits_with_128_plus_signal() {
    for (name, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        assert_eq!(run_as_pid_1(&format!("kill -{name} $$")), Some(code), "{name} (as root)");
    }
}

#[test]
fn command_cannot_kill_or_stop_its_parent() {
    assert_eq!(run_as_pid_1("kill -s KILL 1; kill -s STOP 1; exit 7"), Some(7), "(as root)");
}

#[test]
fn unusable_command_exits_with_127_or_126() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "no program\n").unwrap();
    let text = text.to_str().unwrap();
    for (command, code) in [("/no/such", 127), ("no-such-command", 127), (text, 126), ("/", 126)] {
        let output = run(&[command]);
        assert_eq!(output.status.code(), Some(code), "{command}");
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(log.lines().last().unwrap().starts_with(&format!("aux-shim: {command}: ")), "{log}");
    }
}

/// Starts a shell script that prints `ready` and then each of these signals, by number, that it gets.
fn listening(signals: &[i32]) -> Child {
    let traps: Vec<String> = signals.iter().map(|signal| format!("trap 'echo {signal}' {signal}; ")).collect();
    let traps = traps.concat();
    // Until its parent has ended, by any signal.
    let script = format!("{traps} echo ready; while kill -0 $PPID 2>/dev/null; do sleep 0.01; done");
    ready(&script)
}

/// Starts a shell script that prints `ready`, and waits for that.
fn ready(script: &str) -> Child {
    let mut shim = parent(&["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(shim.stdout.as_mut().unwrap()), "ready\n");
    shim
}

#[test]
fn signals_are_forwarded() {
    // HUP, INT, QUIT, USR1, USR2, PIPE, ALRM, TERM, STKFLT, CONT, TSTP, URG, XCPU, XFSZ, VTALRM, PROF, WINCH, IO, PWR,
    // and some of the real-time signals.
    let signals = [1, 2, 3, 10, 12, 13, 14, 15, 16, 18, 20, 23, 24, 25, 26, 27, 28, 29, 30, 34, 35, 50, 63, 64];
    let mut shim = listening(&signals);
    for signal in signals {
        send(&signal.to_string(), &shim.id().to_string());
        assert_eq!(line(shim.stdout.as_mut().unwrap()), format!("{signal}\n"));
    }
    shim.kill().unwrap();
    shim.wait().unwrap();
}

#[test]
fn sigchld_is_not_forwarded() {
    // It has no children of its own that could raise it.
    let script =
        "trap 'echo CHLD' CHLD; trap 'echo USR1' USR1; echo ready; while kill -0 $PPID 2>/dev/null; do :; done";
    let mut shim = ready(script);
    for signal in ["CHLD", "USR1"] {
        send(signal, &shim.id().to_string());
    }
    assert_eq!(line(shim.stdout.as_mut().unwrap()), "USR1\n", "the first that is forwarded");
    shim.kill().unwrap();
    shim.wait().unwrap();
}

#[test]
fn exit_by_real_time_signal_is_noticed() {
    for signal in [34, 64] {
        let output = run(&["sh", "-c", &format!("kill -{signal} $$")]);
        let code = 128 + signal;
        assert!(output.status.signal() == Some(signal) || output.status.code() == Some(code), "{:?}", output.status);
    }
}

#[test]
fn wrapper_with_ignored_sigchld_notices_exit() {
    let mut ignoring = Command::new("timeout");
    ignoring.args(["20", "sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"]).args(PARENT).args(["sh", "-c", "exit 7"]);
    assert_eq!(ignoring.status().unwrap().code(), Some(7));
}

#[test]
fn orphans_are_reaped() {
    // The inner shell leaves a child behind, which ends at once.
    let script = "sh -c 'true & echo $!'; while :; do sleep 0.01; done";
    let mut shim = parent(&["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let orphan = line(shim.stdout.as_mut().unwrap());
    until("the orphan's reaping", || !Path::new("/proc").join(orphan.trim()).exists());
    send("TERM", &shim.id().to_string());
    shim.wait().unwrap();
}

#[test]
fn stdin_and_environment_pass_through() {
    let mut shim = parent(&["sh", "-c", "cat; printf %s \"$GREETING\""]);
    shim.env("GREETING", "hello").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shim = shim.spawn().unwrap();
    shim.stdin.take().unwrap().write_all(b"from outside, ").unwrap();
    assert_eq!(shim.wait_with_output().unwrap().stdout, b"from outside, hello");
}

#[test]
fn command_group_has_the_terminal() {
    // Field 8 of stat is the terminal's foreground group, field 5 the process' own. It runs a moment before it has it.
    let script = r#"while set -- $(cut -d " " -f 5,8 /proc/$$/stat); [ $1 != $2 ]; do sleep 0.01; done; trap "echo interrupted; exit 5" INT; echo ready; while :; do sleep 0.01; done"#;
    let command = format!("{} sh -c '{script}' 2>/dev/null", PARENT.join(" "));
    // `script` gives its command a terminal of its own.
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script (bsdutils) runs");
    let output = terminal.stdout.as_mut().unwrap();
    assert_eq!(line(output).trim(), "ready", "the command's group is the terminal's");
    // Control-C.
    terminal.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    let mut rest = String::new();
    terminal.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest.matches("interrupted").count(), 1, "{rest}");
    assert_eq!(terminal.wait().unwrap().code(), Some(5));
}
