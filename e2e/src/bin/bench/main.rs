//! What is measured on the cluster: how soon pods start and end, how soon the proxy is asked, whether any of many pods is
//! missed, and how soon pods of many shapes end. `bench/README.md` has the commands and the last results.

#![forbid(unsafe_code)]

mod at_once;
mod cgroup;
mod cost;
mod exit_to_post;
mod many_pods;
mod pod_ends;
mod report;
mod shapes;
mod simulate;
mod timing;
mod watch_and_exec;

use std::process::ExitCode;

const USAGE: &str = "\
usage: bench pod-ends ROUNDS [KIND…] | bench report | bench at-once PODS [KIND…] | bench exit-to-post ROUNDS | bench many-pods [PODS [AT-ONCE]] | bench shapes [ROUNDS] | bench simulate [PODS-A-DAY]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["pod-ends", rounds, kinds @ ..] if let Some(rounds) = number(rounds) => pod_ends::run(rounds, kinds).await,
        ["at-once", pods, kinds @ ..] if let Some(pods) = number(pods) => at_once::run(pods, kinds).await,
        ["report"] => report::run(),
        ["exit-to-post", rounds] if let Some(rounds) = number(rounds) => exit_to_post::run(rounds).await,
        ["many-pods", words @ ..] if let Some([pods, at_once]) = numbers(words, [1000, 30]) => {
            many_pods::run(pods, at_once).await;
        }
        ["shapes", words @ ..] if let Some([rounds]) = numbers(words, [10]) => shapes::run(rounds).await,
        ["simulate", words @ ..] if let Some([pods]) = numbers(words, [1_000_000]) => simulate::run(pods),
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

/// Numbers above 0, and the defaults of those that are not there.
fn numbers<const N: usize>(words: &[&str], defaults: [usize; N]) -> Option<[usize; N]> {
    let mut numbers = defaults;
    for (at, word) in words.iter().enumerate() {
        *numbers.get_mut(at)? = number(word)?;
    }
    Some(numbers)
}
