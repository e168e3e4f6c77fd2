//! Sends a `POST` to an endpoint on localhost without blocking: a fixed request, one line of response.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use contract::endpoint::Endpoint;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

/// Time limit of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of a response: older pilot-agents drain for 5 s first (istio#55424).
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a request that was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QuitResponse {
    /// Accepted, with this status line.
    Accepted(String),
    /// Rejected, with this status line.
    Rejected(String),
    /// The connection was closed without a response: pilot-agent may exit before it has sent one.
    ConnectionClosed,
}

impl fmt::Display for QuitResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(status) | Self::Rejected(status) => f.write_str(status),
            Self::ConnectionClosed => f.write_str("none, connection closed"),
        }
    }
}

/// Holds a request that is on its way.
#[derive(Debug)]
pub(super) struct QuitRequest {
    stream: TcpStream,
    request: String,
    is_sent: bool,
    /// Time at which it times out, since the machine's boot.
    pub(super) deadline: Duration,
}

impl QuitRequest {
    pub(super) fn start(endpoint: &Endpoint, now: Duration) -> io::Result<Self> {
        let Endpoint { address, path } = endpoint;
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let stream = TcpStream::from(socket(family, SockType::Stream, flags, None)?);
        match connect(stream.as_raw_fd(), &SockaddrStorage::from(*address)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        Ok(Self { stream, request, is_sent: false, deadline: now + CONNECT_TIMEOUT })
    }

    /// Returns the descriptor for a poll that wakes when the request can continue.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.stream.as_fd(), if self.is_sent { PollFlags::POLLIN } else { PollFlags::POLLOUT })
    }

    /// Continues as far as possible without waiting. `None` if it has not finished.
    pub(super) fn advance(&mut self, now: Duration) -> Option<io::Result<QuitResponse>> {
        let result = self.exchange(now);
        match result {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                (now >= self.deadline).then(|| Err(io::ErrorKind::TimedOut.into()))
            }
            Err(error) if self.is_sent && error.kind() == io::ErrorKind::ConnectionReset => {
                Some(Ok(QuitResponse::ConnectionClosed))
            }
            result => Some(result),
        }
    }

    fn exchange(&mut self, now: Duration) -> io::Result<QuitResponse> {
        if !self.is_sent {
            // The request fits into the empty send buffer: the write is never partial, and fails with EAGAIN until the
            // connection is established.
            self.stream.write_all(self.request.as_bytes())?;
            self.is_sent = true;
            self.deadline = now + RESPONSE_TIMEOUT;
        }
        let mut response = [0; 256];
        let length = self.stream.read(&mut response)?;
        if length == 0 {
            return Ok(QuitResponse::ConnectionClosed);
        }
        let text = String::from_utf8_lossy(&response[..length]);
        let status = text.lines().next().unwrap_or_default().to_owned();
        let is_accepted = status.split(' ').nth(1).is_some_and(|code| code.starts_with('2'));
        Ok(if is_accepted { QuitResponse::Accepted(status) } else { QuitResponse::Rejected(status) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;
    use crate::proxy::tests::{answering, listen, refusing};
    use nix::poll::{PollTimeout, poll};

    fn post(endpoint: &Endpoint) -> io::Result<QuitResponse> {
        let mut request = QuitRequest::start(endpoint, now())?;
        loop {
            if let Some(response) = request.advance(now()) {
                return response;
            }
            poll(&mut [request.poll_fd()], PollTimeout::NONE).unwrap();
        }
    }

    #[test]
    fn request_posts_to_the_path() {
        let (listener, endpoint) = listen();
        let mut request = QuitRequest::start(&endpoint, now()).unwrap();
        let mut stream = listener.accept().unwrap().0;
        assert!(request.advance(now()).is_none());
        let mut asked = [0; 512];
        let length = stream.read(&mut asked).unwrap();
        let asked = String::from_utf8_lossy(&asked[..length]);
        assert!(asked.starts_with("POST /quitquitquit HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("Host: {}\r\n", endpoint.address)), "{asked}");
        assert!(asked.contains("Content-Length: 0\r\n") && asked.ends_with("\r\n\r\n"), "{asked}");
    }

    #[test]
    fn responses_are_classified_by_their_status() {
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", QuitResponse::Accepted("HTTP/1.1 200 OK".into())),
            ("HTTP/1.1 204 No Content\r\n\r\n", QuitResponse::Accepted("HTTP/1.1 204 No Content".into())),
            ("HTTP/1.1 405 Nope\r\n\r\n", QuitResponse::Rejected("HTTP/1.1 405 Nope".into())),
            ("rubbish", QuitResponse::Rejected("rubbish".into())),
            ("", QuitResponse::ConnectionClosed),
        ];
        for (text, response) in cases {
            assert_eq!(post(&answering(text)).unwrap(), response, "{text:?}");
        }
    }

    #[test]
    fn closed_port_is_refused() {
        let (_sockets, endpoint) = refusing();
        assert_eq!(post(&endpoint).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn missing_response_times_out() {
        let (_listener, endpoint) = listen();
        let mut request = QuitRequest::start(&endpoint, now()).unwrap();
        poll(&mut [request.poll_fd()], PollTimeout::NONE).unwrap();
        let sent = now();
        assert!(request.advance(sent).is_none());
        let late = request.advance(sent + RESPONSE_TIMEOUT).unwrap();
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
