//! Asking a pilot-agent on localhost to quit: one fixed request, one line of answer.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use contract::names::QUIT_PATH;

/// How long the connection, and then the answer, may take before it is asked again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Posts `/quitquitquit` to the port on localhost. Returns the answer's status line.
pub(crate) fn post(port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request(port).as_bytes())?;
    let mut answer = [0; 256];
    let read = stream.read(&mut answer)?;
    let text = String::from_utf8_lossy(&answer[..read]);
    match text.lines().next() {
        Some(status) if !status.is_empty() => Ok(status.to_owned()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn request(port: u16) -> String {
    format!("POST {QUIT_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
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
        assert_eq!(post(port).unwrap(), "HTTP/1.1 200 OK");
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("POST /quitquitquit HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("Host: 127.0.0.1:{port}\r\n")), "{asked}");
        assert!(asked.contains("Content-Length: 0\r\n"), "{asked}");
    }

    #[test]
    fn a_connection_closed_without_an_answer_is_an_error() {
        let (port, _asked) = agent("");
        assert_eq!(post(port).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_closed_port_is_refused() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert_eq!(post(free).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
