//! Measures on the one-node cluster how soon pods start, start again and end, what they cost, and how soon the proxy is asked to quit.
//! `bench/README.md` has the commands and the last results.

#![forbid(unsafe_code)]

mod at_once;
mod cgroup;
mod cost;
mod exit_to_post;
mod pod_ends;
mod report;
mod starts_again;
mod timing;
mod watch_and_exec;

use std::process::ExitCode;

const USAGE: &str = "usage: bench pod-ends ROUNDS [KIND…] | report | exit-to-post ROUNDS | at-once PODS ROUNDS [KIND…] | \
                     starts-again ROUNDS [KIND…]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["pod-ends", rounds, kinds @ ..] if let Some(rounds) = number(rounds) => pod_ends::run(rounds, kinds).await,
        ["report"] => report::run(),
        ["exit-to-post", rounds] if let Some(rounds) = number(rounds) => exit_to_post::run(rounds).await,
        ["at-once", pods, rounds, kinds @ ..] if let (Some(pods), Some(rounds)) = (number(pods), number(rounds)) => {
            at_once::run(pods, rounds, kinds).await;
        }
        ["starts-again", rounds, kinds @ ..] if let Some(rounds) = number(rounds) => {
            starts_again::run(rounds, kinds).await;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Reads a number above 0.
fn number(word: &str) -> Option<usize> {
    word.parse().ok().filter(|&number| number > 0)
}
