//! Stand-ins for the proxy: a container beside the shim, or the shim's own child.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{Container, Pod, Shim};

/// Response of a pilot-agent that ends.
pub(crate) const ACCEPTED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK";

/// Holds a container in the pod, and a port outside it that ends the container on request.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    container: Arc<Mutex<Option<Container>>>,
}

impl Proxy {
    /// Returns true once its container was started.
    pub(super) fn has_started(&self) -> bool {
        self.container.lock().unwrap().is_some()
    }

    /// Opens a port, without a container.
    pub(crate) fn new() -> Self {
        Self::draining(Duration::ZERO)
    }

    /// Opens a port whose container ends this long after the request.
    pub(crate) fn draining(drain: Duration) -> Self {
        let (listener, port) = listen();
        let (requests, container) = (Arc::default(), Arc::default());
        let proxy = Self { port, requests: Arc::clone(&requests), container: Arc::clone(&container) };
        serve(listener, move |line, stream| {
            // Before the response, after which the shim logs the request.
            requests.lock().unwrap().push(line.to_owned());
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

    /// Opens a port, and starts the container.
    pub(crate) fn started(pod: &Pod) -> Self {
        let mut proxy = Self::new();
        proxy.start(pod);
        proxy
    }

    /// Returns the request lines so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until the shim has seen the proxy's end, ends the shim, and checks that it exited with 0 after one request. Returns its
    /// log.
    pub(crate) fn assert_quit_once(&self, mut shim: Shim) -> String {
        shim.until_logged("istio-proxy ended");
        let (status, log) = shim.terminate();
        assert_eq!((status, self.requests().len()), (Some(0), 1), "{log}");
        log
    }

    /// Kills the proxy without a request.
    pub(crate) fn crash(&self) {
        self.container.lock().unwrap().as_ref().unwrap().kill();
    }
}

/// Holds a child of the shim: a script that ends with a code on request to its port.
pub(crate) struct Agent {
    pub(crate) port: String,
    pub(crate) script: String,
    gate: PathBuf,
    quit_requests: Arc<Mutex<u32>>,
}

impl Agent {
    pub(crate) fn new(pod: &Pod, code: i32) -> Self {
        Self::with_script(pod, "", code)
    }

    /// Creates an agent that runs a script first, such as one that sets traps.
    pub(crate) fn with_script(pod: &Pod, first: &str, code: i32) -> Self {
        let (listener, port) = listen();
        let (quit_requests, gate) = (Arc::new(Mutex::new(0)), pod.file("agent-quits"));
        let (count, opened) = (quit_requests.clone(), gate.clone());
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
        Self { port: port.to_string(), script, gate, quit_requests }
    }

    /// Replaces the port by one where something else answers, or nothing.
    pub(crate) fn with_port(self, port: u16) -> Self {
        Self { port: port.to_string(), ..self }
    }

    /// Returns the number of quit requests so far.
    pub(crate) fn quit_requests(&self) -> u32 {
        *self.quit_requests.lock().unwrap()
    }

    /// Waits for the shim's end, and checks that it exited with 0 after one request.
    pub(crate) fn assert_quit_once(&self, shim: Shim) {
        let (status, log) = shim.end();
        assert_eq!((status, self.quit_requests()), (Some(0), 1), "{log}");
    }

    /// Ends the script without a request.
    pub(crate) fn end_unrequested(&self) {
        fs::write(&self.gate, "").unwrap();
    }
}

/// Reads each request, and passes its first line and the connection to `handle`.
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

/// Returns a port that refuses connections while the sockets live. Another test may get a port that was freed; a client's
/// own port is in use, and nothing listens there.
pub(crate) fn closed_port() -> (u16, (TcpListener, TcpStream)) {
    let (listener, port) = listen();
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    (client.local_addr().unwrap().port(), (listener, client))
}

/// Opens a port.
pub(crate) fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn is_quit(line: &str) -> bool {
    line.starts_with("POST /quitquitquit ")
}
