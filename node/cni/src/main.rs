//! The CNI plugin `istio-aux-cni`, last in the chain of pods with runtime class `istio-aux`.

#![forbid(unsafe_code)]

use std::io::{Read, stdin};
use std::process::ExitCode;

use cni::input::Environment;
use cni::plugin::{run, timeout};

fn main() -> ExitCode {
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
