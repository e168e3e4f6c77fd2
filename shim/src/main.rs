//! `aux-shim`: ends a pod's Istio proxy when the containers it served have finished.
//!
//! Exit status: 0 whatever it met; 2 for arguments that make no sense.

#![deny(unsafe_code)]

mod args;
mod clock;
mod decide;
mod log;
mod lookout;
mod memory;
mod pidfd;
mod process;
mod procfs;
mod quit;
mod starts;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse(std::env::args_os()) {
        Ok(args::Command::Watch(arguments)) => {
            watch::run(&arguments);
            ExitCode::SUCCESS
        }
        Ok(args::Command::Show(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("aux-shim: {error}");
            ExitCode::from(2)
        }
    }
}
