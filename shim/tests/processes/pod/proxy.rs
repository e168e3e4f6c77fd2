//! Stand-ins for the proxy: a container beside the shim, or the shim's own child.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{Container, Pod};

/// The answer of a pilot-agent that ends.
pub(crate) const ACCEPTED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK";

/// A container in the pod, and a port outside it that ends the container when it is asked to.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    container: Arc<Mutex<Option<Container>>>,
}

impl Proxy {
    /// A port, and no container yet.
    pub(crate) fn new() -> Self {
        Self::draining(Duration::ZERO)
    }

    /// The same of one that ends a while after it was asked to.
    pub(crate) fn draining(drain: Duration) -> Self {
        let (listener, port) = listen();
        let (asked, container) = (Arc::default(), Arc::default());
        let proxy = Self { port, asked: Arc::clone(&asked), container: Arc::clone(&container) };
        serve(listener, move |line, stream| {
            // Before the answer, on which the shim logs that it has asked.
            asked.lock().unwrap().push(line.to_owned());
            let _ = stream.write_all(ACCEPTED);
            if is_quit(line) {
                thread::sleep(drain);
                container.lock().unwrap().as_ref().inspect(|container: &&Container| container.kill());
            }
        });
        proxy
    }

    /// Starts the container, once or again.
    pub(crate) fn start(&mut self, pod: &Pod) {
        let mut container = self.container.lock().unwrap();
        if let Some(mut earlier) = container.take() {
            earlier.wait();
        }
        *container = Some(pod.start("istio-proxy", "exec sleep 1000"));
    }

    /// A proxy that runs.
    pub(crate) fn started(pod: &Pod) -> Self {
        let mut proxy = Self::new();
        proxy.start(pod);
        proxy
    }

    /// The request lines so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Ends the proxy though nobody asked.
    pub(crate) fn crash(&self) {
        self.container.lock().unwrap().as_ref().unwrap().kill();
    }
}

/// A child of the shim: a script that ends with a code once its port is asked to.
pub(crate) struct Agent {
    pub(crate) port: String,
    pub(crate) script: String,
    gate: PathBuf,
    asked: Arc<Mutex<u32>>,
}

impl Agent {
    pub(crate) fn new(pod: &Pod, code: i32) -> Self {
        Self::that_does(pod, "", code)
    }

    /// One that does something first, as setting traps.
    pub(crate) fn that_does(pod: &Pod, first: &str, code: i32) -> Self {
        let (listener, port) = listen();
        let (asked, gate) = (Arc::new(Mutex::new(0)), pod.file("agent-quits"));
        let (count, opened) = (asked.clone(), gate.clone());
        serve(listener, move |line, stream| {
            *count.lock().unwrap() += u32::from(is_quit(line));
            let _ = stream.write_all(ACCEPTED);
            if is_quit(line) {
                fs::write(&opened, "").unwrap();
            }
        });
        let ready = pod.file("agent-ready");
        let (ready, wait) = (ready.display(), gate.display());
        let script = format!("{first}\ntouch {ready}; while ! [ -e {wait} ]; do sleep 0.01; done; exit {code}");
        Self { port: port.to_string(), script, gate, asked }
    }

    /// One that has another port, where something else answers or nothing does.
    pub(crate) fn with_port(self, port: u16) -> Self {
        Self { port: port.to_string(), ..self }
    }

    /// Waits until it has done what it does first.
    pub(crate) fn until_ready(pod: &Pod) {
        super::until("the agent's traps", || pod.file("agent-ready").exists());
    }

    pub(crate) fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }

    /// Ends it though nobody asked.
    pub(crate) fn end_unasked(&self) {
        fs::write(&self.gate, "").unwrap();
    }
}

/// Reads each request, and hands over its first line with the connection.
pub(crate) fn serve(listener: TcpListener, mut handle: impl FnMut(&str, &mut TcpStream) + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 512];
            let read = stream.read(&mut request).unwrap_or_default();
            let text = String::from_utf8_lossy(&request[..read]).into_owned();
            handle(text.lines().next().unwrap_or_default(), &mut stream);
        }
    });
}

/// A port that refuses connections while the sockets live. A port that was given back may be another test's at once;
/// a client's own port is taken, and nothing listens there.
pub(crate) fn closed_port() -> (u16, (TcpListener, TcpStream)) {
    let (listener, port) = listen();
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    (client.local_addr().unwrap().port(), (listener, client))
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn is_quit(line: &str) -> bool {
    line.starts_with("POST /quitquitquit ")
}
