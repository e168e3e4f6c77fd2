//! Sends requests that must be rejected with a clear answer, and opens connections that only occupy the server.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::WAIT_TIMEOUT;
use super::server::{self, Server, exchange_with, review, try_connect};

const JSON: &str = "content-type: application/json";
/// Head of a request whose body is as large as the server allows.
const LARGEST_HEAD: &[u8] =
    b"POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4194304\r\n\r\n";

/// Asserts that the server still answers.
fn assert_alive(server: &Server, after: &str) {
    assert_eq!(server.mutate(review().to_string()).0, 200, "after {after}");
}

#[test]
fn bad_requests_get_a_clear_answer() {
    let server = Server::start();
    let large = vec![b' '; 5 << 20];
    let good = review().to_string();
    let old = good.replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1");
    let good = good.as_bytes();
    let not_a_review = "the body is not an AdmissionReview in JSON";
    let form = "content-type: application/x-www-form-urlencoded";
    let not_json = "the body is \"application/x-www-form-urlencoded\"; this path takes application/json";
    // Case, header, body, status, beginning of the answer.
    let bodies: [(&str, &str, &[u8], u16, &str); 10] = [
        ("no body", JSON, b"", 400, not_a_review),
        ("not JSON", JSON, b"rubbish", 400, not_a_review),
        ("not UTF-8", JSON, b"{\"kind\": \"\xff\"}", 400, not_a_review),
        ("truncated", JSON, &good[..good.len() / 2], 400, not_a_review),
        ("a pod", JSON, br#"{"apiVersion": "v1", "kind": "Pod"}"#, 400, r#"the body is "Pod" of "v1""#),
        ("v1beta1", JSON, old.as_bytes(), 400, r#"the body is "AdmissionReview" of "admission.k8s.io/v1beta1""#),
        ("5 MiB", JSON, &large, 413, "the body is larger than 4194304 bytes"),
        ("a form", form, good, 415, not_json),
        ("a charset", "content-type: Application/JSON; charset=utf-8", good, 200, "{"),
        ("no media type", "accept: */*", good, 200, "{"),
    ];
    let check = |case, (given, answer): (u16, String), status, text| {
        assert_eq!(given, status, "{case}: {answer}");
        assert!(answer.starts_with(text), "{case}: {answer}");
        assert_eq!(answer.lines().count(), 1, "{case}: {answer}");
        assert_alive(&server, case);
    };
    for (case, header, body, status, text) in bodies {
        let length = format!("content-length: {}", body.len());
        let answer = exchange_with(server.connect(), "POST", "/mutate", &[header, &length], body);
        check(case, answer, status, text);
    }
    let not_found = "there is no \"/elsewhere\" here; there is /mutate";
    check("another path", server.send("POST", "/elsewhere", b""), 404, not_found);
    check("another method", server.send("GET", "/mutate", b""), 405, "this path takes POST");
}

#[test]
fn rejected_request_is_read_whole_and_keeps_its_connection() {
    let server = Server::start();
    let body = vec![b' '; 2 << 20];
    let review = review().to_string();
    let send = |stream: &mut server::Tls, target: &str, media_type: &str, body: &[u8], end: &str| {
        let length = body.len();
        let head =
            format!("{target} HTTP/1.1\r\nhost: x\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("the server reads it");
        let mut answer = Vec::new();
        while !String::from_utf8_lossy(&answer).contains(end) {
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).expect("the server answers");
            assert_ne!(length, 0, "closed after {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&buffer[..length]);
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    for (target, media_type, status, end) in [
        ("POST /elsewhere", "application/json", "404", "/out-of-mesh\n"),
        ("PUT /mutate", "application/json", "405", "this path takes POST\n"),
        ("POST /mutate", "text/plain", "415", "this path takes application/json\n"),
    ] {
        let mut stream = server.connect();
        let answer = send(&mut stream, target, media_type, &body, end);
        assert_eq!(answer.split(' ').nth(1), Some(status), "{target}: {answer}");
        let answer = send(&mut stream, "POST /mutate", "application/json", review.as_bytes(), r#""allowed":true"#);
        assert_eq!(answer.split(' ').nth(1), Some("200"), "after {target}: {answer}");
    }
}

#[test]
fn chunked_body_has_the_same_limit() {
    let server = Server::start();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    let body = chunk.repeat(5) + "0\r\n\r\n";
    let headers = [JSON, "transfer-encoding: chunked"];
    let answer = exchange_with(server.connect(), "POST", "/mutate", &headers, body.as_bytes());
    assert_eq!(answer, (413, "the body is larger than 4194304 bytes\n".to_owned()));
    assert_alive(&server, "a long body in chunks");
}

#[test]
fn trickling_body_times_out_and_delays_no_review() {
    let server = Server::start();
    let slow: [_; 50] = std::array::from_fn(|_| {
        let mut stream = server.connect();
        stream.write_all(LARGEST_HEAD).unwrap();
        stream
    });
    assert_alive(&server, "bodies that are not sent");
    let [mut one, ..] = slow;
    let began = Instant::now();
    let mut answer = Vec::new();
    one.sock.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    while !String::from_utf8_lossy(&answer).contains("longer than") {
        assert!(began.elapsed() < WAIT_TIMEOUT, "it was not cut off: {answer:?}");
        let mut buffer = [0; 1024];
        match one.read(&mut buffer) {
            Ok(0) => panic!("closed without an answer"),
            Ok(length) => answer.extend_from_slice(&buffer[..length]),
            // The read timed out, so one more byte is sent.
            Err(_) => drop(one.write_all(b" ")),
        }
    }
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    assert_alive(&server, "bodies that trickle");
}

/// Returns the largest resident memory that a process has had, in KiB.
fn peak_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Opens a connection that sends nearly all of a body of 4 MiB, and then only waits. Returns when it is closed.
fn send_most_of_a_body(stream: &mut (impl Read + Write), progress: &AtomicUsize) -> std::io::Result<()> {
    stream.write_all(LARGEST_HEAD)?;
    let part = vec![b' '; 100 << 10];
    for _ in 0..39 {
        stream.write_all(&part)?;
        progress.fetch_add(part.len(), Ordering::Relaxed);
    }
    stream.read(&mut [0; 1024]).map(drop)
}

/// Memory limit of the Deployment, 128Mi, in KiB.
const MEMORY_LIMIT: usize = 128 << 10;

#[test]
fn pods_of_many_small_parts_fit_into_memory() {
    // Nearly as large as a body may be.
    let many = |part: Value| Value::from(vec![part.clone(); (4 << 20) / (part.to_string().len() + 1) - 1_000]);
    for (pointer, part) in [
        ("/spec/containers", json!({"name": ""})),
        ("/spec/containers/0/command", json!("")),
        ("/spec/containers/0/args", json!("")),
        ("/spec/containers/0/env", json!({"name": ""})),
        ("/spec/containers/0/volumeMounts", json!({"name": "", "mountPath": ""})),
        ("/spec/volumes", json!({"name": ""})),
        ("/metadata/ownerReferences", json!({"kind": "", "name": ""})),
    ] {
        let server = Server::start();
        let mut review = review();
        let object = &mut review["request"]["object"];
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = many(part);
        let (status, _) = server.mutate(review.to_string());
        let peak = peak_memory(server.pid());
        assert!(status == 200 && peak < MEMORY_LIMIT, "{pointer}: {status}, {peak} KiB");
        println!("{pointer}: {peak} KiB");
    }
}

#[test]
fn unfinished_bodies_neither_block_nor_fill_memory() {
    let server = Server::start();
    let (config, address) = (server.client_config(None), server.admission.clone());
    let (stopped, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let (config, address, stopped, sent) = (config.clone(), address.clone(), stopped.clone(), sent.clone());
            thread::spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    // The server closes the connection, and stops before this client.
                    let _ = try_connect(&address, &config)
                        .and_then(|mut connection| send_most_of_a_body(&mut connection, &sent));
                }
            })
        })
        .collect();
    let began = Instant::now();
    // More than the server could hold at once.
    while sent.load(Ordering::Relaxed) < 200 << 20 {
        assert!(began.elapsed() < 4 * WAIT_TIMEOUT, "only {} bytes were sent", sent.load(Ordering::Relaxed));
        assert_alive(&server, "most of a body");
    }
    for _ in 0..50 {
        assert_alive(&server, "a hundred bodies that nearly end");
    }
    assert_has_evicted(&server);
    let peak = peak_memory(server.pid());
    assert!(peak < MEMORY_LIMIT, "{peak} KiB");
    stopped.store(true, Ordering::Relaxed);
    drop(server);
    for client in clients {
        client.join().unwrap();
    }
}

/// Asserts that the server counts evicted connections.
fn assert_has_evicted(server: &Server) {
    let (_, metrics) = server.ask_health("GET", "/metrics");
    assert!(metrics.contains("\nistio_aux_evicted_connections_total "), "{metrics}");
    assert!(!metrics.contains("\nistio_aux_evicted_connections_total 0\n"), "{metrics}");
}

/// Raises this process' limit of file descriptors to what the system allows.
fn raise_file_descriptor_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

#[test]
fn idle_connections_block_no_review() {
    let server = Server::start();
    raise_file_descriptor_limit();
    let idle: Vec<TcpStream> = (0..2000).map(|_| TcpStream::connect(&server.admission).unwrap()).collect();
    let mut first = &idle[0];
    // Shorter than the handshake's timeout, which would also close the connection.
    first.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let ended = first.read(&mut [0]);
    let is_closed =
        matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert!(is_closed, "the first was not evicted: {ended:?}");
    assert_has_evicted(&server);
    assert_alive(&server, "2,000 idle connections");
}

/// First message of a handshake by a client that has TLS 1.0 at most.
const CLIENT_HELLO_OF_TLS_1_0: [u8; 50] = [
    22, 3, 1, 0, 45, // a record of TLS 1.0: a handshake of 45 bytes
    1, 0, 0, 41, 3, 1, // ClientHello, TLS 1.0
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
    31, 0, // no session
    0, 2, 0, 47, // TLS_RSA_WITH_AES_128_CBC_SHA
    1, 0, // no compression
];

#[test]
fn old_tls_and_plain_http_get_a_clear_answer() {
    let server = Server::start();
    let mut old = TcpStream::connect(&server.admission).unwrap();
    old.write_all(&CLIENT_HELLO_OF_TLS_1_0).unwrap();
    let mut answer = Vec::new();
    let _ = old.read_to_end(&mut answer);
    // A fatal alert, such as protocol_version.
    assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
    assert_alive(&server, "TLS 1.0");

    let plain = TcpStream::connect(&server.admission).unwrap();
    let (status, answer) = exchange_with(plain, "GET", "/mutate", &[], b"");
    assert_eq!((status, answer.as_str()), (400, "this port takes HTTPS, not plain HTTP\n"));
    assert_alive(&server, "plain HTTP");
}

#[test]
fn http_2_is_not_supported() {
    let server = Server::start();
    let mut stream = server.connect();
    let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    stream.sock.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    assert!(!ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "the connection was not closed");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    assert_alive(&server, "HTTP/2");
}
