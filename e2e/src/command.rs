//! Programs that the tests run as an operator does, in the directory `deploy`.

use std::io::Write;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tokio::task::spawn_blocking;

use crate::context::require_allowed;

/// Runs a program on the cluster that the tests may use, with these words and this standard input.
#[must_use]
pub fn run(program: &str, words: &[&str], input: &str) -> Output {
    output(&mut on_cluster(program, words), input)
}

/// Returns a command for the cluster that the tests may use.
pub fn on_cluster(program: &str, words: &[&str]) -> Command {
    require_allowed();
    let mut command = Command::new(program);
    command.args(words).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy"));
    command
}

/// Runs a program that needs no cluster, and hides the kubeconfig from it.
#[must_use]
pub fn run_offline(program: &str, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(words).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy"));
    output(command.env("KUBECONFIG", "/dev/null"), "")
}

/// Runs what blocks beside the futures of this runtime.
pub async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// Writes a program, which may stand in for another. Another process writes it: Linux runs no program that a process has open for
/// writing (ETXTBSY), as the children that other tests start meanwhile could have it.
pub fn write_program(path: &Path, text: &str) {
    printed(&output(Command::new("install").args(["-m", "755", "/dev/stdin"]).arg(path), text));
}

fn output(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    process.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads its input");
    process.wait_with_output().expect("it ends")
}

/// Returns what a program printed. Panics where it failed.
#[track_caller]
pub fn printed(output: &Output) -> String {
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{errors}{text}");
    text
}
