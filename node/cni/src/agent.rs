//! The connection to the agent.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::protocol::{Request, Response};

const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Why there is no response of the agent's that says it did what was asked.
#[derive(Debug, PartialEq, Eq)]
pub enum CallError {
    /// No response came in time.
    Unavailable(String),
    /// The agent responded with a reason.
    Rejected(String),
}

/// Asks the agent once, and waits for its response until `deadline`.
pub fn call(socket: &Path, request: &Request, deadline: Instant) -> Result<(), CallError> {
    let response = exchange(socket, request, deadline)
        .map_err(|error| CallError::Unavailable(format!("no response from {}: {error}", socket.display())))?;
    response.error.map_or(Ok(()), |reason| Err(CallError::Rejected(reason)))
}

/// Asks again until `deadline` where the agent cannot be reached, or goes away before it responds.
pub fn call_until(socket: &Path, request: &Request, deadline: Instant) -> Result<(), CallError> {
    loop {
        match call(socket, request, deadline) {
            Err(CallError::Unavailable(_)) if Instant::now() + RETRY_DELAY < deadline => thread::sleep(RETRY_DELAY),
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
