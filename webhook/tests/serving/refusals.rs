//! What is refused, each with its clear answer, and the server alive after it: a table of requests, and connections that
//! only hold on.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::PATIENCE;
use super::server::{Server, exchange_with, review};

const JSON: &str = "content-type: application/json";

/// Asserts that the server still answers.
fn assert_alive(server: &Server, after: &str) {
    assert_eq!(server.send("POST", "/mutate", review().to_string().as_bytes()).0, 200, "after {after}");
}

/// Name, method, path, a header, body, status, how the answer begins.
type Case<'c> = (&'c str, &'c str, &'c str, &'c str, &'c [u8], u16, &'c str);

#[test]
fn bad_requests_have_their_answers() {
    let server = Server::start();
    let large = vec![b' '; 9 << 20];
    let good = review().to_string();
    let old = good.replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1");
    let not_a_review = "the body is not an AdmissionReview in JSON";
    let cases: [Case; 12] = [
        ("no body", "POST", "/mutate", JSON, b"", 400, not_a_review),
        ("not JSON", "POST", "/mutate", JSON, b"rubbish", 400, not_a_review),
        ("not UTF-8", "POST", "/mutate", JSON, b"{\"kind\": \"\xff\"}", 400, not_a_review),
        ("truncated", "POST", "/mutate", JSON, &good.as_bytes()[..good.len() / 2], 400, not_a_review),
        (
            "another kind",
            "POST",
            "/mutate",
            JSON,
            b"{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}",
            400,
            "the body is \"Pod\" of \"v1\"",
        ),
        (
            "an old version",
            "POST",
            "/mutate",
            JSON,
            old.as_bytes(),
            400,
            "the body is \"AdmissionReview\" of \"admission.k8s.io/v1beta1\"",
        ),
        ("9 MiB", "POST", "/mutate", JSON, &large, 413, "the body is larger than 8388608 bytes"),
        (
            "a form",
            "POST",
            "/mutate",
            "content-type: application/x-www-form-urlencoded",
            good.as_bytes(),
            415,
            "the body is \"application/x-www-form-urlencoded\"; this path takes application/json",
        ),
        ("another path", "POST", "/elsewhere", JSON, b"", 404, "there is no \"/elsewhere\" here; there is /mutate"),
        ("another method", "GET", "/mutate", JSON, b"", 405, "this path takes POST"),
        (
            "a kind of JSON",
            "POST",
            "/mutate",
            "content-type: Application/JSON; charset=utf-8",
            good.as_bytes(),
            200,
            "{",
        ),
        ("no kind of content", "POST", "/mutate", "accept: */*", good.as_bytes(), 200, "{"),
    ];
    for (case, method, path, kind, body, status, text) in cases {
        let length = format!("content-length: {}", body.len());
        let (given, answer) = exchange_with(server.connect(), method, path, &[kind, &length], body);
        assert_eq!(given, status, "{case}: {answer}");
        assert!(answer.starts_with(text), "{case}: {answer}");
        assert_eq!(answer.lines().count(), 1, "{case}: {answer}");
        assert_alive(&server, case);
    }
}

#[test]
fn a_body_of_unknown_length_has_the_same_limit() {
    let server = Server::start();
    let mut body = Vec::new();
    for _ in 0..9 {
        body.extend_from_slice(b"100000\r\n");
        body.extend_from_slice(&vec![b' '; 1 << 20]);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    let (status, answer) =
        exchange_with(server.connect(), "POST", "/mutate", &[JSON, "transfer-encoding: chunked"], &body);
    assert_eq!((status, answer.as_str()), (413, "the body is larger than 8388608 bytes\n"));
    assert_alive(&server, "a long body in chunks");
}

#[test]
fn bodies_that_trickle_are_cut_off_and_hold_nobody_up() {
    let server = Server::start();
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(
                    format!("POST /mutate HTTP/1.1\r\nhost: x\r\n{JSON}\r\ncontent-length: 8388608\r\n\r\n").as_bytes(),
                )
                .unwrap();
            stream
        })
        .collect();
    assert_alive(&server, "bodies that are not sent");
    let [mut one, ..] = <[_; 50]>::try_from(slow).unwrap_or_else(|_| unreachable!());
    let began = Instant::now();
    let mut answer = Vec::new();
    one.sock.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    while !String::from_utf8_lossy(&answer).contains("longer than") {
        assert!(began.elapsed() < PATIENCE, "it was not cut off: {answer:?}");
        let mut buffer = [0; 1024];
        match one.read(&mut buffer) {
            Ok(0) => panic!("closed without an answer"),
            Ok(length) => answer.extend_from_slice(&buffer[..length]),
            // Nothing yet: one more byte.
            Err(_) => drop(one.write_all(b" ")),
        }
    }
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    assert_alive(&server, "bodies that trickle");
}

/// Lets this process have as many file descriptors as the system allows it.
fn have_file_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[test]
fn two_thousand_idle_connections_keep_nobody_out() {
    let server = Server::start();
    have_file_descriptors();
    let idle: Vec<TcpStream> = (0..2000).map(|_| TcpStream::connect(&server.admission).unwrap()).collect();
    let mut first = &idle[0];
    // Sooner than a client that does not shake hands is closed for that.
    first.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let ended = first.read(&mut [0]);
    let is_closed =
        matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert!(is_closed, "the first is to give way: {ended:?}");
    assert_alive(&server, "2,000 idle connections");
}

/// A handshake's first message that knows no TLS newer than 1.0.
const CLIENT_HELLO_OF_TLS_1_0: [u8; 50] = [
    22, 3, 1, 0, 45, // a record of TLS 1.0: a handshake of 45 bytes
    1, 0, 0, 41, 3, 1, // ClientHello, TLS 1.0
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
    31, 0, // no session
    0, 2, 0, 47, // TLS_RSA_WITH_AES_128_CBC_SHA
    1, 0, // no compression
];

#[test]
fn old_tls_and_no_tls_are_told_so() {
    let server = Server::start();
    let mut old = TcpStream::connect(&server.admission).unwrap();
    old.write_all(&CLIENT_HELLO_OF_TLS_1_0).unwrap();
    let mut answer = Vec::new();
    let _ = old.read_to_end(&mut answer);
    // A fatal alert: protocol_version, or what of the old handshake is missing first.
    assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
    assert_alive(&server, "TLS 1.0");

    let plain = TcpStream::connect(&server.admission).unwrap();
    let (status, answer) = exchange_with(plain, "GET", "/mutate", &[], b"");
    assert_eq!((status, answer.as_str()), (400, "this port takes HTTPS, not plain HTTP\n"));
    assert_alive(&server, "plain HTTP");
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The error of the last GOAWAY among some frames.
fn goaway(mut frames: &[u8]) -> Option<u8> {
    const GOAWAY: u8 = 7;
    let mut error = None;
    while frames.len() >= 9 {
        let length = usize::from(frames[0]) << 16 | usize::from(frames[1]) << 8 | usize::from(frames[2]);
        if frames[3] == GOAWAY {
            error = frames.get(9 + 7).copied();
        }
        frames = frames.get(9 + length..).unwrap_or_default();
    }
    error
}

#[test]
fn streams_that_are_opened_and_reset_end_their_connection() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const ENHANCE_YOUR_CALM: u8 = 11;
    let server = Server::start();
    let mut stream = server.connect();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(SETTINGS, 0, 0, &[]));
    // :method POST, :scheme https, :path /mutate, :authority x
    let head = [&[0x83, 0x87, 0x04, 7][..], b"/mutate", &[0x01, 1], b"x"].concat();
    for stream in (1..20_000).step_by(2) {
        sent.extend(frame(HEADERS, 4, stream, &head));
        sent.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    let was_taken = stream.write_all(&sent).is_ok();
    stream.sock.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let is_open = was_taken && ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    assert!(!is_open, "the connection was not closed");
    // It is closed before all was read, and what was said before may be lost with that.
    assert!(goaway(&answer).is_none_or(|error| error == ENHANCE_YOUR_CALM), "{answer:?}");
    assert_alive(&server, "a rapid reset");
}
