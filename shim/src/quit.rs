//! Asking what listens on localhost to quit: one fixed request, one line of answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use contract::endpoint::Endpoint;
use contract::names::{ENVOY_ADMIN_PORT, QUIT_PATH};

/// How long a connection may take to come about.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long an answer may take: older pilot-agents drain for 5 s first (istio#55424).
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What came of a request that was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The status line says that it was accepted.
    Accepted(String),
    /// The status line says that it was not.
    Declined(String),
    /// The connection was closed without one: pilot-agent may be gone before its answer is.
    Closed,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(status) | Self::Declined(status) => f.write_str(status),
            Self::Closed => f.write_str("none, connection closed"),
        }
    }
}

/// Posts `/quitquitquit` to pilot-agent's status port; where that is off or refuses, to Envoy's admin port, with which
/// pilot-agent ends too.
pub(crate) fn proxy(status_port: u16) -> io::Result<Answer> {
    if status_port == 0 {
        return post(&on_localhost(ENVOY_ADMIN_PORT));
    }
    match post(&on_localhost(status_port)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            post(&on_localhost(ENVOY_ADMIN_PORT)).map_err(|_| error)
        }
        answer => answer,
    }
}

fn on_localhost(port: u16) -> Endpoint {
    Endpoint { address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), path: QUIT_PATH.to_owned() }
}

/// Posts to an endpoint. An error means that nobody was reached, or that no answer came in time.
pub(crate) fn post(endpoint: &Endpoint) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&endpoint.address, CONNECT_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(CONNECT_WITHIN))?;
    stream.write_all(request(endpoint).as_bytes())?;
    let mut answer = [0; 256];
    match stream.read(&mut answer) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Answer::Closed),
        Err(error) => Err(error),
        Ok(0) => Ok(Answer::Closed),
        Ok(read) => {
            let text = String::from_utf8_lossy(&answer[..read]);
            let status = text.lines().next().unwrap_or_default().to_owned();
            let is_accepted = status.split(' ').nth(1).is_some_and(|code| code.starts_with('2'));
            Ok(if is_accepted { Answer::Accepted(status) } else { Answer::Declined(status) })
        }
    }
}

fn request(Endpoint { address, path }: &Endpoint) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Answers one connection with `answer`, and returns what was asked.
    fn agent(answer: &'static str) -> (u16, thread::JoinHandle<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(asked).unwrap()
        });
        (port, asked)
    }

    #[test]
    fn posts_quitquitquit_and_returns_the_status_line() {
        let (port, asked) = agent("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK");
        assert_eq!(proxy(port).unwrap(), Answer::Accepted("HTTP/1.1 200 OK".into()));
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("POST /quitquitquit HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("Host: 127.0.0.1:{port}\r\n")), "{asked}");
        assert!(asked.contains("Content-Length: 0\r\n"), "{asked}");
    }

    #[test]
    fn answers_are_told_apart() {
        let cases = [
            ("HTTP/1.1 204 No Content\r\n\r\n", Answer::Accepted("HTTP/1.1 204 No Content".into())),
            ("HTTP/1.1 405 Method Not Allowed\r\n\r\n", Answer::Declined("HTTP/1.1 405 Method Not Allowed".into())),
            ("rubbish", Answer::Declined("rubbish".into())),
            ("", Answer::Closed),
        ];
        for (text, answer) in cases {
            let (port, _asked) = agent(text);
            assert_eq!(proxy(port).unwrap(), answer, "{text:?}");
        }
    }

    #[test]
    fn a_closed_port_is_refused() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // A port that is given back may be another test's listener at once; a client's own port is taken and nobody listens there.
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let closed = client.local_addr().unwrap().port();
        assert_eq!(proxy(closed).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
