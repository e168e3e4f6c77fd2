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

fn main() -> ExitCode {
    match args::parse(std::env::args_os()) {
        Ok(args::Command::Watch(arguments)) => {
            run::watch(&arguments);
            ExitCode::SUCCESS
        }
        Ok(args::Command::Supervise(arguments, command)) => run::supervise(&arguments, &command).exit_like_child(),
        Ok(args::Command::StartAfter(arguments, command)) => {
            let error = run::start_after::run(&arguments, &command);
            eprintln!("aux-shim: {error}");
            error.exit().exit_like_child()
        }
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
