//! Measures on the one-node cluster how soon pods start and end, what they cost, and how soon the proxy is asked to quit.
//! `bench/README.md` has the commands and the last results.

#![forbid(unsafe_code)]

mod cgroup;
mod cost;
mod exit_to_post;
mod pod_ends;
mod report;
mod timing;
mod watch_and_exec;

use std::process::ExitCode;

use pod_ends::DEFAULT_GRACE;

const USAGE: &str = "usage: bench pod-ends ROUNDS [--grace=SECONDS] [KIND…] | bench report | bench exit-to-post ROUNDS";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["pod-ends", rounds, rest @ ..] if let Some(rounds) = number(rounds) => {
            let grace = rest.first().and_then(|word| word.strip_prefix("--grace="));
            let kinds = &rest[usize::from(grace.is_some())..];
            match grace.map_or(Some(DEFAULT_GRACE), number) {
                Some(grace) => pod_ends::run(rounds, grace, kinds).await,
                None => return usage(),
            }
        }
        ["report"] => report::run(),
        ["exit-to-post", rounds] if let Some(rounds) = number(rounds) => exit_to_post::run(rounds).await,
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Reads a number above 0.
fn number(word: &str) -> Option<usize> {
    word.parse().ok().filter(|&number| number > 0)
}
