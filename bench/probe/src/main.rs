//! Stands at the two ends between which the shim acts, for `bench exit-to-post`: `probe payload` says when it is about to exit,
//! `probe agent` stands in for pilot-agent and says when it was asked to quit. Nanoseconds of the machine's monotonic
//! clock, which is the same in every container.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Names the port on which the shim asks.
const STATUS_PORT: u16 = 15_020;
/// Gives the shim enough time to see the payload.
const RUNS_FOR: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("payload") => {
            thread::sleep(RUNS_FOR);
            println!("{}", nanoseconds());
            ExitCode::SUCCESS
        }
        Some("agent") => match asked_at() {
            Ok(at) => {
                println!("{at}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("probe: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: probe payload|agent");
            ExitCode::from(2)
        }
    }
}

/// Waits for the first byte of a request, and answers it.
fn asked_at() -> std::io::Result<i64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, STATUS_PORT))?;
    let (mut stream, _) = listener.accept()?;
    stream.read_exact(&mut [0])?;
    let at = nanoseconds();
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    Ok(at)
}

/// Reads the machine's monotonic clock.
fn nanoseconds() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the clock can be read");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}
