//! Asking what listens on localhost to quit: one fixed request, one line of answer.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use contract::endpoint::Endpoint;
use contract::names::{ENVOY_ADMIN_PORT, QUIT_PATH};

/// How long a connection may take to come about.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long an answer may take: older pilot-agents drain for 5 s first (istio#55424).
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Posts `/quitquitquit` to pilot-agent's status port; where that is off or refuses, to Envoy's admin port, with which
/// pilot-agent ends too. Returns the answer's status line.
pub(crate) fn proxy(status_port: u16) -> io::Result<String> {
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

/// Posts to an endpoint. Returns the answer's status line.
pub(crate) fn post(endpoint: &Endpoint) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&endpoint.address, CONNECT_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(CONNECT_WITHIN))?;
    stream.write_all(request(endpoint).as_bytes())?;
    let mut answer = [0; 256];
    let read = stream.read(&mut answer)?;
    let text = String::from_utf8_lossy(&answer[..read]);
    match text.lines().next() {
        Some(status) if !status.is_empty() => Ok(status.to_owned()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
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
        assert_eq!(proxy(port).unwrap(), "HTTP/1.1 200 OK");
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("POST /quitquitquit HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("Host: 127.0.0.1:{port}\r\n")), "{asked}");
        assert!(asked.contains("Content-Length: 0\r\n"), "{asked}");
    }

    #[test]
    fn a_connection_closed_without_an_answer_is_an_error() {
        let (port, _asked) = agent("");
        assert_eq!(proxy(port).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_closed_port_is_refused() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert_eq!(proxy(free).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
