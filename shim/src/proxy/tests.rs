//! Targets and times of quit requests, with ports of this machine and a clock of the test's.

use super::*;
use crate::clock::now;
use contract::policy::RestartPolicy;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

pub(super) fn listen() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let endpoint = quit_at(listener.local_addr().unwrap());
    (listener, endpoint)
}

/// Returns a port that refuses connections while the sockets live: a client's own, where nothing listens. Another test may get one that
/// was freed.
pub(super) fn refusing() -> ((TcpListener, TcpStream), Endpoint) {
    let (listener, endpoint) = listen();
    let client = TcpStream::connect(endpoint.address).unwrap();
    let refusing = quit_at(client.local_addr().unwrap());
    ((listener, client), refusing)
}

/// Returns a port that gives this answer to each connection.
pub(super) fn answering(answer: &'static str) -> Endpoint {
    let (listener, endpoint) = listen();
    thread::spawn(move || {
        loop {
            answer_once(&listener, answer);
        }
    });
    endpoint
}

fn answer_once(listener: &TcpListener, answer: &str) {
    let mut stream = listener.accept().unwrap().0;
    let _ = stream.read(&mut [0; 512]);
    let _ = stream.write_all(answer.as_bytes());
}

const ACCEPTED: &str = "HTTP/1.1 200 OK\r\n\r\n";

fn shutdown_of(quit: &[Endpoint], proxy: &[Endpoint]) -> ProxyShutdown {
    let mut args = WatchArgs::new(vec!["main".into()], RestartPolicy::Never);
    args.quit = quit.to_vec();
    let mut shutdown = ProxyShutdown::new(&args);
    shutdown.targets[quit.len()].endpoints = proxy.to_vec();
    shutdown.connections = PathBuf::new();
    shutdown
}

#[test]
fn proxy_is_asked_once_no_data_is_on_its_way() {
    let directory = tempfile::tempdir().unwrap();
    let (data, empty) = ("00000000:00000800", "00000000:00000000");
    let mut shutdown = shutdown_of(&[], &[answering(ACCEPTED)]);
    shutdown.connections = directory.path().to_owned();
    let began = now();
    // Data again after a moment without it, as where the proxy has just read it.
    for (look, queues) in (0..).zip([data, data, empty, data, empty, empty]) {
        assert!(!shutdown.is_requested(), "look {look}");
        queues::tests::write(directory.path(), "01", queues);
        let at = began + look * FLUSH_PAUSE;
        shutdown.advance(true, at);
        assert!(shutdown.is_requested() || shutdown.deadline(true, true) == Some(at + FLUSH_PAUSE));
    }
    assert!(shutdown.is_requested());
}

#[test]
fn proxy_is_asked_at_once_or_after_5_s_with_data_on_its_way() {
    let directory = tempfile::tempdir().unwrap();
    queues::tests::write(directory.path(), "01", "00000000:00000800");
    let mut shutdown = shutdown_of(&[], &[answering(ACCEPTED)]);
    shutdown.connections = directory.path().to_owned();
    let seconds = seconds_until(&mut shutdown, ProxyShutdown::is_requested);
    assert!((5..6).contains(&seconds), "a peer that reads nothing: {seconds} s");
    let mut shutdown = shutdown_of(&[], &[answering(ACCEPTED)]);
    shutdown.advance(true, now());
    assert!(shutdown.is_requested(), "nothing is on its way");
}

/// Lets up to a minute pass in steps of 100 ms until a condition holds. Returns the seconds that took.
fn seconds_until(shutdown: &mut ProxyShutdown, is_so: impl Fn(&ProxyShutdown) -> bool) -> u64 {
    let began = now();
    let mut at = began;
    while !is_so(shutdown) && at < began + Duration::from_mins(1) {
        shutdown.advance(true, at);
        thread::sleep(Duration::from_millis(2));
        at += Duration::from_millis(100);
    }
    at.saturating_sub(began).as_secs()
}

#[test]
fn silent_endpoint_delays_proxy_by_one_attempt() {
    let (_listeners, silent): (Vec<TcpListener>, Vec<Endpoint>) = (0..4).map(|_| listen()).unzip();
    let mut shutdown = shutdown_of(&silent, &[answering(ACCEPTED)]);
    let seconds = seconds_until(&mut shutdown, ProxyShutdown::is_requested);
    assert!((40..45).contains(&seconds), "{seconds} s");
}

#[test]
fn next_address_is_asked_after_refusal_or_silence() {
    let (_silent, silent) = listen();
    let (_sockets, refusing) = refusing();
    for first in [refusing, silent, answering("HTTP/1.1 404 Not Found\r\n\r\n"), answering("HTTP/1.1 503 x\r\n\r\n")] {
        let mut shutdown = shutdown_of(&[], &[first, answering(ACCEPTED)]);
        // A target that has accepted is asked again after a minute.
        let began = now();
        let has_accepted = |shutdown: &ProxyShutdown| shutdown.targets[0].next >= began + DRAIN_TIMEOUT;
        let seconds = seconds_until(&mut shutdown, has_accepted);
        assert!(seconds < 15, "{seconds} s");
    }
}

#[test]
fn restarted_proxy_is_asked_again_after_a_second() {
    let mut shutdown = shutdown_of(&[], &[answering(ACCEPTED)]);
    let proxy = shutdown.proxy();
    for _ in 0..6 {
        seconds_until(&mut shutdown, |shutdown| shutdown.accepted.is_some());
        shutdown.proxy_ended(now());
    }
    let refused = Err(io::ErrorKind::ConnectionRefused.into());
    shutdown.note(proxy, 0, &refused, Duration::ZERO);
    assert_eq!(shutdown.targets[proxy].next, RETRY_BACKOFF_MIN);
}

#[test]
fn envoy_is_asked_on_both_addresses_of_localhost() {
    for (status_port, expected) in
        [(15020, "127.0.0.1:15020 [::1]:15000 127.0.0.1:15000"), (0, "[::1]:15000 127.0.0.1:15000")]
    {
        let mut args = WatchArgs::new(vec!["main".into()], RestartPolicy::Never);
        args.status_port = status_port;
        let shutdown = ProxyShutdown::new(&args);
        let addresses: Vec<String> =
            shutdown.targets[0].endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
        assert_eq!(addresses.join(" "), expected);
    }
}

#[test]
fn proxy_that_does_not_end_gets_sigterm_and_then_sigkill() {
    for answer in [ACCEPTED, "HTTP/1.1 404 Not Found\r\n\r\n"] {
        let mut shutdown = shutdown_of(&[], &[answering(answer)]);
        let began = now();
        shutdown.advance(true, began);
        seconds_until(&mut shutdown, |shutdown| shutdown.in_flight.is_none());
        for (minutes, signal) in [(1, Signal::SIGTERM), (2, Signal::SIGKILL)] {
            let due = began + Duration::from_mins(minutes);
            assert_eq!(shutdown.due_signal(due.saturating_sub(Duration::from_secs(1))), None, "{answer}");
            assert_eq!(shutdown.due_signal(due), Some(signal), "{answer}");
        }
    }
}

#[test]
fn signal_wakes_the_proxys_parent_only() {
    let (_sockets, refusing) = refusing();
    let mut shutdown = shutdown_of(&[], &[refusing]);
    let began = now();
    seconds_until(&mut shutdown, |shutdown| shutdown.is_requested() && shutdown.in_flight.is_none());
    let [parent, sidecar] = [true, false].map(|is_parent| shutdown.deadline(true, is_parent).unwrap());
    assert!(parent < began + RETRY_BACKOFF_MIN, "its ports are closed");
    assert!(sidecar >= began + RETRY_BACKOFF_MIN, "the next request");
}

#[test]
fn proxy_that_drains_for_ever_is_asked_at_its_next_endpoint() {
    let first = answering(ACCEPTED);
    let (envoy, second) = listen();
    envoy.set_nonblocking(true).unwrap();
    let mut shutdown = shutdown_of(&[], &[first, second]);
    let began = now();
    seconds_until(&mut shutdown, |shutdown| shutdown.accepted.is_some());
    assert!(envoy.accept().is_err(), "the first has accepted");
    shutdown.advance(true, began + 2 * DRAIN_TIMEOUT);
    assert!(envoy.accept().is_ok());
}
