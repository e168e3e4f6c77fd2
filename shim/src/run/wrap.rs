//! `aux-shim wrap`: runs a container's command as its parent, and reports the container's start and end.

use std::ffi::OsString;
use std::path::Path;

use contract::args::WrapArgs;
use nix::poll::{PollTimeout, poll};

use super::child::{Child, ChildExit};
use crate::clock::now;
use crate::log;
use crate::observe::ContainerLock;

/// Runs a container's command to its end.
pub(crate) fn run(args: &WrapArgs, command: &[OsString]) -> ChildExit {
    // The time differs for each start of the container.
    let instance = now().as_nanos().to_string();
    // The payload matters more than the proxy's end, so it also runs without a lock.
    let lock = ContainerLock::acquire(Path::new(&args.lock_dir), &instance).inspect_err(|error| {
        log::warn(
            "this container cannot report its end, so the pod's proxy will not be ended",
            &[("lock-dir", &args.lock_dir), ("error", error)],
        );
    });
    let exit = match Child::start(command) {
        Ok(child) => wait(child),
        Err(error) => {
            eprintln!("aux-shim: {error}");
            error.exit()
        }
    };
    if let Ok(Err(error)) = lock.map(|mut lock| lock.record_exit(exit.code())) {
        // The released lock still shows that the container has ended.
        log::warn("the exit code cannot be reported", &[("lock-dir", &args.lock_dir), ("error", &error)]);
    }
    exit
}

fn wait(mut child: Child) -> ChildExit {
    loop {
        if let Some(exit) = child.forward_signals_and_reap() {
            return exit;
        }
        // After an interrupted poll, the signal can be read.
        let _ = poll(&mut [child.poll_fd()], PollTimeout::NONE);
    }
}
