//! `istio-aux`: the webhook and its command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    istio_aux::cli::main(std::env::args_os())
}
