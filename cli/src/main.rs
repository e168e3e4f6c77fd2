//! Runs `istio-aux`, the command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    istio_aux::commands::main(std::env::args_os())
}
