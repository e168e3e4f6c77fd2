//! `aux-shim`: ends a pod's Istio proxy when the containers it served have finished.
//!
//! Exit status: of `watch` always 0; of `supervise` and `start-after` their command's; 1 if `install` failed;
//! 2 for invalid arguments.

#![deny(unsafe_code)]

mod args;
mod clock;
mod ended;
mod log;
mod observe;
mod pod;
mod proxy;
mod run;
mod syscalls;

use std::process::ExitCode;

use run::child::{StartError, exit_like};

fn main() -> ExitCode {
    match args::parse(std::env::args_os()) {
        Ok(args::Command::Watch(arguments)) => {
            run::watch(&arguments);
            ExitCode::SUCCESS
        }
        Ok(args::Command::Supervise(arguments, command)) => match run::supervise(&arguments, &command) {
            Ok(status) => exit_like(status),
            Err(error) => not_started(&error),
        },
        Ok(args::Command::StartAfter(arguments, command)) => not_started(&run::start_after::run(&arguments, &command)),
        Ok(args::Command::Install(directory)) => match run::install::run(&directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("aux-shim: the program cannot be copied into {}: {error}", directory.display());
                ExitCode::FAILURE
            }
        },
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

fn not_started(error: &StartError) -> ExitCode {
    eprintln!("aux-shim: {error}");
    ExitCode::from(error.exit_code())
}
