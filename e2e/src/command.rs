//! Programs that scenarios run as an operator does, in the folder `deploy`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs a program with these words and this standard input.
#[must_use]
pub fn run(program: &str, words: &[&str], input: &str) -> Output {
    let mut command = Command::new(program);
    command.args(words).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    process.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads its input");
    process.wait_with_output().expect("it ends")
}

/// What a program printed, where it succeeded.
#[must_use]
pub fn printed(output: &Output) -> String {
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{errors}{text}");
    text
}
