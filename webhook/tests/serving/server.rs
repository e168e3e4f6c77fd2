//! Starts servers and sends them requests.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::WAIT_TIMEOUT;

/// DNS name of the certificate.
pub(crate) const NAME: &str = "istio-aux.istio-aux.svc";

/// Holds a connection with TLS.
pub(crate) type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Runs a server with a certificate of its own, and kills it when dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) directory: TempDir,
    log: BufReader<PipeReader>,
    pub(crate) admission: String,
    pub(crate) health: String,
    pub(crate) certificate: CertificateDer<'static>,
}

pub(crate) fn write_certificate(directory: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    std::fs::write(directory.join("tls.crt"), cert.pem()).unwrap();
    std::fs::write(directory.join("tls.key"), signing_key.serialize_pem()).unwrap();
    cert.der().clone()
}

pub(crate) fn serve(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_istio-aux-webhook"));
    command.args(["--listen=[::]:0", "--health-listen=[::]:0", "--drain-delay=0s"]);
    command.arg("--tls-cert").arg(directory.join("tls.crt"));
    command.arg("--tls-key").arg(directory.join("tls.key"));
    command.stderr(Stdio::piped());
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the test has stopped the server.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_with_log(arguments).0
    }

    /// Returns the server, and the end of a pipe to which it writes its log.
    pub(crate) fn start_with_log(arguments: &[&str]) -> (Self, PipeWriter) {
        Self::start_in(&[&["--native-sidecars=enabled"], arguments].concat(), &[])
    }

    /// Returns the same server in another environment, which may ask the API server for its version.
    pub(crate) fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> (Self, PipeWriter) {
        let directory = tempfile::tempdir().unwrap();
        let certificate = write_certificate(directory.path());
        let (log, log_writer) = pipe().unwrap();
        let mut command = serve(directory.path());
        let command = command.envs(environment.iter().copied());
        let process = command.args(arguments).stderr(log_writer.try_clone().unwrap()).spawn().unwrap();
        // The command holds the other end of the pipe.
        command.stderr(Stdio::null());
        let mut log = BufReader::new(log);
        let mut line = String::new();
        while !line.contains("health") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server ended before it served");
        }
        // `field=[::]:port`, or `"field":"[::]:port"`.
        let address = |field: &str| {
            let rest = line.split_once(field).unwrap_or_else(|| panic!("no {field} in {line}")).1;
            let value = rest.trim_start_matches(['"', ':', '=']);
            let value = &value[..value.find(['"', ' ', '\n', ',']).unwrap()];
            format!("127.0.0.1:{}", value.rsplit(':').next().unwrap())
        };
        let (admission, health) = (address("admission"), address("health"));
        (Self { process, directory, log, admission, health, certificate }, log_writer)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends an admission review, and returns status and body.
    pub(crate) fn mutate(&self, body: impl AsRef<[u8]>) -> (u16, String) {
        self.send("POST", "/mutate", body.as_ref())
    }

    /// Sends a request over TLS, and returns status and body.
    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        exchange(self.connect(), method, path, body)
    }

    pub(crate) fn connect(&self) -> Tls {
        connect(&self.admission, &self.client_config(None))
    }

    /// Returns the configuration of a client that trusts the server, and has this certificate in PEM with its key.
    pub(crate) fn client_config(&self, identity: Option<[&str; 2]>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some([cert, key]) => {
                let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        Arc::new(config)
    }

    /// Returns whether the server has the expected certificate.
    pub(crate) fn shows_its_certificate(&self) -> bool {
        let mut stream = self.connect();
        stream.conn.complete_io(&mut stream.sock).is_ok()
    }

    /// Waits for a line of the log with this text.
    pub(crate) fn until_logged(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the log ended without {text:?}");
        }
    }

    pub(crate) fn ask_health(&self, method: &str, path: &str) -> (u16, String) {
        let stream = TcpStream::connect(&self.health).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        exchange(stream, method, path, b"")
    }

    /// Asks the server to end, and returns how it did, and the rest of its log.
    pub(crate) fn stop(mut self) -> (ExitStatus, String) {
        let pid = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        (self.process.wait().unwrap(), rest)
    }
}

pub(crate) fn connect(address: &str, config: &Arc<ClientConfig>) -> Tls {
    try_connect(address, config).unwrap()
}

pub(crate) fn try_connect(address: &str, config: &Arc<ClientConfig>) -> std::io::Result<Tls> {
    let session = ClientConnection::new(config.clone(), ServerName::try_from(NAME).unwrap()).unwrap();
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
    Ok(StreamOwned::new(session, stream))
}

pub(crate) fn exchange(stream: impl Read + Write, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let length = format!("content-length: {}", body.len());
    exchange_with(stream, method, path, &["content-type: application/json", &length], body)
}

/// Sends a request with these header lines, and returns status and body.
pub(crate) fn exchange_with(
    stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> (u16, String) {
    let answer = send_request(stream, &format!("{method} {path}"), headers, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Sends a request, and returns all that the server answers until it closes the connection.
pub(crate) fn send_request(mut stream: impl Read + Write, target: &str, headers: &[&str], body: &[u8]) -> String {
    let lines = headers.join("\r\n");
    let head = format!("{target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}\r\n\r\n");
    // A server that rejects a client or a body answers and closes before it has read all of the request.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Waits until a condition holds.
pub(crate) fn wait_until(condition: impl Fn() -> bool, failure: &str) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < WAIT_TIMEOUT, "{failure}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn review() -> Value {
    let owner = json!({"kind": "Job", "name": "hello", "controller": true});
    let pod = json!({"metadata": {"generateName": "hello-", "ownerReferences": [owner]}, "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}});
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "1f", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "team", "operation": "CREATE", "object": pod},
    })
}
