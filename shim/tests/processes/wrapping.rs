//! `aux-shim wrap` as the parent of real commands.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::pod::{send, until};

/// Returns a wrapper of a command, which reports in this directory.
fn wrap(lock_dir: &Path, command: &[&str]) -> Command {
    // A shell starts what it puts into the background with SIGINT ignored, and a script cannot trap that.
    let mut wrapper = Command::new("env");
    wrapper
        .arg("--default-signal")
        .arg(env!("CARGO_BIN_EXE_aux-shim"))
        .arg("wrap")
        .arg(format!("--lock-dir={}", lock_dir.display()))
        .arg("--")
        .args(command);
    wrapper
}

fn run(command: &[&str]) -> (Output, String) {
    let lock_dir = tempfile::tempdir().unwrap();
    let output = wrap(lock_dir.path(), command).output().unwrap();
    (output, reported_exit(&lock_dir))
}

/// Returns the last line of the container's report.
fn reported_exit(lock_dir: &TempDir) -> String {
    let text = fs::read_to_string(lock_dir.path().join("lock")).unwrap();
    text.lines().last().unwrap().to_owned()
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
        let (output, report) = run(&["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(report, format!("exited {code}"));
    }
}

#[test]
fn wrapper_dies_by_the_commands_signal() {
    for (name, signal) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2), ("ABRT", 6)] {
        let (output, report) = run(&["sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!((output.status.signal(), report), (Some(signal), format!("exited {}", 128 + signal)), "{name}");
    }
}

#[test]
fn wrapper_as_pid_1_exits_with_128_plus_signal() {
    for (name, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let lock_dir = tempfile::tempdir().unwrap();
        let wrapper = wrap(lock_dir.path(), &["sh", "-c", &format!("kill -{name} $$")]);
        let mut namespace = Command::new("unshare");
        namespace.args(["--pid", "--fork", "--mount-proc"]).arg(wrapper.get_program()).args(wrapper.get_args());
        assert_eq!(namespace.status().unwrap().code(), Some(code), "{name} (as root)");
    }
}

#[test]
fn payload_cannot_kill_or_stop_its_wrapper() {
    let lock_dir = tempfile::tempdir().unwrap();
    let wrapper = wrap(lock_dir.path(), &["sh", "-c", "kill -s KILL 1; kill -s STOP 1; exit 7"]);
    let mut namespace = Command::new("unshare");
    namespace.args(["--pid", "--fork", "--mount-proc"]).arg(wrapper.get_program()).args(wrapper.get_args());
    assert_eq!(namespace.status().unwrap().code(), Some(7), "(as root)");
    assert_eq!(reported_exit(&lock_dir), "exited 7");
}

#[test]
fn unusable_command_exits_with_127_or_126() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "no program\n").unwrap();
    let text = text.to_str().unwrap();
    for (command, code) in [("/no/such", 127), ("no-such-command", 127), (text, 126), ("/", 126)] {
        let (output, report) = run(&[command]);
        assert_eq!((output.status.code(), report), (Some(code), format!("exited {code}")), "{command}");
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with(&format!("aux-shim: {command}: ")) && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn command_runs_without_lock_dir() {
    let output = wrap(Path::new("/no/such"), &["sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("WARN this container cannot report its end, so the pod's proxy will not be ended"), "{line}");
}

/// Starts a wrapped shell script that prints `ready` and then each of these signals, by number, that it gets.
fn listening(lock_dir: &Path, signals: &[i32]) -> Child {
    let traps: Vec<String> = signals.iter().map(|signal| format!("trap 'echo {signal}' {signal}; ")).collect();
    let traps = traps.concat();
    // Until the wrapper has ended, by any signal.
    let script = format!("{traps} echo ready; while kill -0 $PPID 2>/dev/null; do sleep 0.01; done");
    let mut wrapper = wrap(lock_dir, &["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(wrapper.stdout.as_mut().unwrap()), "ready\n");
    wrapper
}

#[test]
fn signals_are_forwarded() {
    // HUP, INT, QUIT, USR1, USR2, PIPE, ALRM, TERM, STKFLT, CONT, TSTP, URG, XCPU, XFSZ, VTALRM, PROF, WINCH, IO, PWR,
    // and some of the real-time signals.
    let signals = [1, 2, 3, 10, 12, 13, 14, 15, 16, 18, 20, 23, 24, 25, 26, 27, 28, 29, 30, 34, 35, 50, 63, 64];
    let lock_dir = tempfile::tempdir().unwrap();
    let mut wrapper = listening(lock_dir.path(), &signals);
    for signal in signals {
        send(&signal.to_string(), &wrapper.id().to_string());
        assert_eq!(line(wrapper.stdout.as_mut().unwrap()), format!("{signal}\n"));
    }
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
}

#[test]
fn sigchld_is_not_forwarded() {
    let lock_dir = tempfile::tempdir().unwrap();
    // It has no children of its own that could raise it.
    let script =
        "trap 'echo CHLD' CHLD; trap 'echo USR1' USR1; echo ready; while kill -0 $PPID 2>/dev/null; do :; done";
    let mut wrapper = wrap(lock_dir.path(), &["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line(wrapper.stdout.as_mut().unwrap()), "ready\n");
    for signal in ["CHLD", "USR1"] {
        send(signal, &wrapper.id().to_string());
    }
    assert_eq!(line(wrapper.stdout.as_mut().unwrap()), "USR1\n", "the first that is forwarded");
    wrapper.kill().unwrap();
    wrapper.wait().unwrap();
}

#[test]
fn exit_by_real_time_signal_is_noticed() {
    for signal in [34, 64] {
        let (output, report) = run(&["sh", "-c", &format!("kill -{signal} $$")]);
        let code = 128 + signal;
        assert_eq!(report, format!("exited {code}"));
        assert!(output.status.signal() == Some(signal) || output.status.code() == Some(code), "{:?}", output.status);
    }
}

#[test]
fn command_runs_despite_traps_and_changes_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let precious = directory.path().join("precious");
    for what in ["a link", "a pipe", "a held lock", "a directory"] {
        fs::write(&precious, "another container's data\n").unwrap();
        fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
        let lock_dir = tempfile::tempdir().unwrap();
        let file = lock_dir.path().join("lock");
        let mut held = None;
        match what {
            "a link" => symlink(&precious, &file).unwrap(),
            "a pipe" => mkfifo(&file, Mode::S_IRWXU).unwrap(),
            "a held lock" => held = Some(File::create(&file).unwrap()),
            _ => fs::create_dir(&file).unwrap(),
        }
        if let Some(file) = &held {
            file.lock_shared().unwrap();
        }
        let output = wrap(lock_dir.path(), &["sh", "-c", "exit 3"]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{what}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "another container's data\n", "{what}");
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o600, "{what}");
        if what == "a directory" {
            let log = String::from_utf8(output.stderr).unwrap();
            assert!(log.contains("WARN this container cannot report its end"), "{log}");
        } else {
            assert_eq!(reported_exit(&lock_dir), "exited 3", "{what}");
        }
    }
}

#[test]
fn wrapper_with_ignored_sigchld_notices_exit() {
    let lock_dir = tempfile::tempdir().unwrap();
    let wrapper = wrap(lock_dir.path(), &["sh", "-c", "exit 7"]);
    let mut ignoring = Command::new("timeout");
    ignoring
        .args(["20", "sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"])
        .arg(wrapper.get_program())
        .args(wrapper.get_args());
    assert_eq!((ignoring.status().unwrap().code(), reported_exit(&lock_dir).as_str()), (Some(7), "exited 7"));
}

#[test]
fn orphans_are_reaped() {
    let lock_dir = tempfile::tempdir().unwrap();
    // The inner shell leaves a child behind, which ends at once.
    let script = "sh -c 'true & echo $!'; while :; do sleep 0.01; done";
    let mut wrapper = wrap(lock_dir.path(), &["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let orphan = line(wrapper.stdout.as_mut().unwrap());
    until("the orphan's reaping", || !Path::new("/proc").join(orphan.trim()).exists());
    send("TERM", &wrapper.id().to_string());
    wrapper.wait().unwrap();
}

#[test]
fn stdin_and_environment_pass_through() {
    let lock_dir = tempfile::tempdir().unwrap();
    let mut wrapper = wrap(lock_dir.path(), &["sh", "-c", "cat; printf %s \"$GREETING\""]);
    wrapper.env("GREETING", "hello").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut wrapper = wrapper.spawn().unwrap();
    wrapper.stdin.take().unwrap().write_all(b"from outside, ").unwrap();
    assert_eq!(wrapper.wait_with_output().unwrap().stdout, b"from outside, hello");
}

#[test]
fn command_group_has_the_terminal() {
    let lock_dir = tempfile::tempdir().unwrap();
    // Field 8 of stat is the terminal's foreground group, field 5 the process' own. It runs a moment before it has it.
    let script = r#"while set -- $(cut -d " " -f 5,8 /proc/$$/stat); [ $1 != $2 ]; do sleep 0.01; done; trap "echo interrupted; exit 5" INT; echo ready; while :; do sleep 0.01; done"#;
    let wrapper = wrap(lock_dir.path(), &["sh", "-c", script]);
    let words: Vec<String> = std::iter::once(wrapper.get_program())
        .chain(wrapper.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")))
        .collect();
    // `script` gives its command a terminal of its own.
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
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
