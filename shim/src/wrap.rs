//! `aux-shim wrap`: the parent of one container's command, which says in the locks' folder how that container is.

use std::ffi::OsString;
use std::path::Path;

use contract::args::Wrap;
use rustix::event::poll;

use crate::child::{Child, Ended};
use crate::clock::now;
use crate::locks::Lock;
use crate::log;

/// Runs a container's command to its end.
pub(crate) fn run(wrap: &Wrap, command: &[OsString]) -> Ended {
    // Each start of the container has an id of its own: the time, since the machine's boot.
    let attempt = now().as_nanos().to_string();
    // The payload matters more than the proxy's end: without a lock it runs all the same.
    let lock = Lock::take(Path::new(&wrap.locks), &wrap.name, &attempt).inspect_err(|error| {
        log::warn("the pod's proxy will not be ended", &[("lock", &wrap.locks), ("error", &error)]);
    });
    let ended = match Child::start(command) {
        Ok(child) => until_end(child),
        Err(error) => {
            eprintln!("aux-shim: {error}");
            error.status()
        }
    };
    if let Ok(Err(error)) = lock.map(|mut lock| lock.leave(ended.code())) {
        // Without a verdict the lock's end still tells that the container has ended.
        log::warn("the exit code could not be left", &[("lock", &wrap.locks), ("error", &error)]);
    }
    ended
}

fn until_end(mut child: Child) -> Ended {
    loop {
        if let Some(ended) = child.attend() {
            return ended;
        }
        // An interrupted poll has its signal in the pipe.
        let _ = poll(&mut [child.poll_fd()], None);
    }
}
