//! Writes the output of a proxy to a file: containerd's shim starts the plugin's program as a logger (`binary://`), with pipes as
//! descriptors 3 and 4, and waits until it writes to descriptor 5. Output is always read, so that a full disk stops no proxy.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

/// The first argument of the program as a logger; the second is the file. containerd takes them from the address.
pub const LOG_COMMAND: &str = "log";
/// The kubelet's limit for a container's log (`containerLogMaxSize`), in bytes. Two files have twice that.
const LIMIT: u64 = 10 << 20;
const OUTPUT: &str = "/proc/self/fd/3";
const ERRORS: &str = "/proc/self/fd/4";
const IS_READY: &str = "/proc/self/fd/5";

/// Returns the file that has the output before the last rotation.
#[must_use]
pub fn rotated(log: &Path) -> PathBuf {
    log.with_added_extension("1")
}

/// Copies both pipes to `log` until they are closed. The shim closes them and sends SIGTERM at once (`binaryIO`), before the last
/// lines are read.
pub fn run(log: &Path) -> io::Result<()> {
    SigSet::from(Signal::SIGTERM).thread_block()?;
    let pipes = [File::open(OUTPUT)?, File::open(ERRORS)?];
    fs::write(IS_READY, "1")?;
    thread::scope(|scope| {
        for pipe in pipes {
            scope.spawn(move || copy(pipe, log, LIMIT));
        }
    });
    Ok(())
}

/// Copies what is read; loses what cannot be written.
fn copy(mut from: impl Read, log: &Path, limit: u64) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => {
                let _ = append(log, &buffer[..len], limit);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Appends to the log, and begins a new one at the limit. Both pipes, and the proxies of an upgrade, write to the same file, which only
/// root reads, as containerd's logs of containers.
fn append(log: &Path, bytes: &[u8], limit: u64) -> io::Result<()> {
    let open = || OpenOptions::new().append(true).create(true).mode(0o640).open(log);
    let mut file = open()?;
    if file.metadata()?.len() >= limit {
        file.lock()?;
        // Another writer may have begun a new one meanwhile.
        let full = file.metadata()?.ino();
        if fs::metadata(log).is_ok_and(|current| current.ino() == full) {
            fs::rename(log, rotated(log))?;
        }
        file = open()?;
    }
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_has_the_last_output_within_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("a.log");
        let output: Vec<u8> = (0..40_000_u32).flat_map(|line| format!("{line}\n").into_bytes()).collect();
        // A pipe returns a part at a time.
        for part in output.chunks(1000) {
            copy(part, &log, 50_000);
        }
        let [earlier, last] = [rotated(&log), log].map(|file| fs::read(file).unwrap());
        assert!(earlier.len() <= 51_000 && last.len() <= 51_000, "{} {}", earlier.len(), last.len());
        assert!(output.ends_with(&[earlier, last].concat()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn writers_at_the_limit_lose_no_earlier_log() {
        const LIMIT: u64 = 10_000;
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("a.log");
        let line = [b'a'; 100];
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| append(&log, &line, LIMIT).unwrap()));
            }
        });
        let earlier = fs::metadata(rotated(&log)).unwrap();
        assert!(earlier.len() >= LIMIT, "{} bytes", earlier.len());
        assert_eq!(earlier.mode() & 0o007, 0);
    }

    #[test]
    fn output_is_read_though_it_cannot_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("missing/a.log");
        let mut output = io::repeat(b'a').take(1 << 20);
        copy(&mut output, &log, LIMIT);
        assert_eq!((output.limit(), log.exists()), (0, false));
        fs::create_dir(log.parent().unwrap()).unwrap();
        copy(&b"later"[..], &log, LIMIT);
        assert_eq!(fs::read_to_string(log).unwrap(), "later");
    }
}
