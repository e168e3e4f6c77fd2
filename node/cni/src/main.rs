//! The CNI plugin `istio-aux-cni`, last in the chain of pods with runtime class `istio-aux`, and the logger of their proxies.

#![forbid(unsafe_code)]

use std::io::{Read, stdin};
use std::process::ExitCode;

use cni::input::Environment;
use cni::logger::{self, LOG_COMMAND};
use cni::plugin::{run, timeout};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|command| command == LOG_COMMAND) {
        // It has nowhere to report an error.
        let _ = logger::run(args.next().unwrap_or_default().as_ref());
        return ExitCode::SUCCESS;
    }
    let environment = Environment::read();
    let mut input = String::new();
    // Input that cannot be read is reported by `run`, as an invalid configuration.
    let _ = stdin().read_to_string(&mut input);
    match run(&environment, &input, timeout(&environment.command)) {
        Ok(output) => {
            println!("{output}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{}", failure.to_json());
            ExitCode::FAILURE
        }
    }
}
