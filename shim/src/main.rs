//! `aux-shim`: ends a pod's Istio proxy when the containers it served have finished.
//!
//! Exit status: of `watch` 0 whatever it met; of `supervise` and `wrap` their command's; 2 for arguments that make no
//! sense; 1 where `install` failed.

#![deny(unsafe_code)]

mod args;
mod asking;
mod child;
mod clock;
mod decide;
mod install;
mod locks;
mod log;
mod lookout;
mod memory;
mod pidfd;
mod process;
mod procfs;
mod quit;
mod starts;
mod watch;
mod wrap;

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse(std::env::args_os()) {
        Ok(args::Command::Watch(arguments)) => {
            watch::run(&arguments);
            ExitCode::SUCCESS
        }
        Ok(args::Command::Supervise(arguments, command)) => watch::supervise(&arguments, &command).take_over(),
        Ok(args::Command::Wrap(arguments, command)) => wrap::run(&arguments, &command).take_over(),
        Ok(args::Command::Install(folder)) => match install::run(&folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("aux-shim: the program cannot be copied into {}: {error}", folder.display());
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
