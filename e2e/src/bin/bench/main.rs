//! What is measured on the cluster: how soon pods start and end, how soon the proxy is asked, and whether any of many pods
//! is missed. `bench/README.md` has the commands and the last results.

#![forbid(unsafe_code)]

mod exit_to_post;
mod many_pods;
mod pod_ends;

use std::process::ExitCode;

const USAGE: &str = "usage: bench pod-ends ROUNDS [KIND…] | bench exit-to-post ROUNDS | bench many-pods PODS AT-ONCE";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["pod-ends", rounds, kinds @ ..] if let Some(rounds) = number(rounds) => pod_ends::run(rounds, kinds).await,
        ["exit-to-post", rounds] if let Some(rounds) = number(rounds) => exit_to_post::run(rounds).await,
        ["many-pods", pods, at_once] if let (Some(pods), Some(at_once)) = (number(pods), number(at_once)) => {
            many_pods::run(pods, at_once).await;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// A number above 0.
fn number(word: &str) -> Option<usize> {
    word.parse().ok().filter(|&number| number > 0)
}
