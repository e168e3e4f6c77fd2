//! What is measured on the cluster: how soon pods start and end, how soon the proxy is asked, and whether any of many pods
//! is missed. `bench/README.md` has the commands and the last results.

#![forbid(unsafe_code)]

mod exit_to_post;
mod many_pods;
mod pod_ends;

use std::process::ExitCode;

const USAGE: &str = "usage: bench pod-ends ROUNDS | bench exit-to-post ROUNDS | bench many-pods PODS AT-ONCE";

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match (words.as_slice(), numbers(&words)) {
        (["pod-ends", _], Some(numbers)) => pod_ends::run(numbers[0]).await,
        (["exit-to-post", _], Some(numbers)) => exit_to_post::run(numbers[0]).await,
        (["many-pods", _, _], Some(numbers)) => many_pods::run(numbers[0], numbers[1]).await,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// The arguments after the first, all of them numbers above 0.
fn numbers(words: &[&str]) -> Option<Vec<usize>> {
    let parsed = words.iter().skip(1).map(|word| word.parse().ok().filter(|&number| number > 0));
    parsed.collect()
}
