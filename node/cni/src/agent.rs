//! The connection to the agent.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::protocol::{Request, Response};

const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Sends a request to the agent once, and waits for its response until `deadline`.
pub fn call(socket: &Path, request: &Request, deadline: Instant) -> Result<(), Failure> {
    let response = exchange(socket, request, deadline)
        .map_err(|error| Failure::Unavailable(format!("no response from {}: {error}", socket.display())))?;
    response.error.map_or(Ok(()), |reason| Err(Failure::Rejected(reason)))
}

/// Repeats the request until `deadline` while the agent cannot be reached, or closes the connection without a response.
pub fn call_until(socket: &Path, request: &Request, deadline: Instant) -> Result<(), Failure> {
    loop {
        match call(socket, request, deadline) {
            Err(Failure::Unavailable(_)) if Instant::now() + RETRY_DELAY < deadline => thread::sleep(RETRY_DELAY),
            result => return result,
        }
    }
}

fn exchange(socket: &Path, request: &Request, deadline: Instant) -> io::Result<Response> {
    let mut stream = UnixStream::connect(socket)?;
    // A timeout of zero is an error of its own.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut response = String::new();
    BufReader::new(stream).read_line(&mut response)?;
    if response.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&response)?)
}
