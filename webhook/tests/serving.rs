//! The binary as a server: TLS, paths, refusals, the end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, CertifiedKey, KeyPair, generate_simple_self_signed};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const NAME: &str = "istio-aux.istio-aux.svc";

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server with a certificate of its own.
struct Server {
    process: Child,
    folder: TempDir,
    log: BufReader<std::process::ChildStderr>,
    admission: String,
    health: String,
    certificate: CertificateDer<'static>,
}

fn write_certificate(folder: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    std::fs::write(folder.join("tls.crt"), cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), signing_key.serialize_pem()).unwrap();
    cert.der().clone()
}

fn serve(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_istio-aux"));
    command.args(["serve", "--listen=127.0.0.1:0", "--health-listen=127.0.0.1:0"]);
    command.arg("--tls-cert").arg(folder.join("tls.crt"));
    command.arg("--tls-key").arg(folder.join("tls.key"));
    command.stderr(Stdio::piped());
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already where the test stopped it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = write_certificate(folder.path());
        let mut process = serve(folder.path()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        let address = |field: &str| {
            let rest = line.split_once(field).unwrap_or_else(|| panic!("no {field} in {line}")).1;
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let (admission, health) = (address("admission="), address("health="));
        Self { process, folder, log, admission, health, certificate }
    }

    /// Sends a request over TLS, and returns status and body.
    fn send(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        exchange(self.connect(), method, path, body)
    }

    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let session = ClientConnection::new(Arc::new(config), ServerName::try_from(NAME).unwrap()).unwrap();
        StreamOwned::new(session, TcpStream::connect(&self.admission).unwrap())
    }

    /// Whether the server shows the certificate that it is expected to have.
    fn shows_its_certificate(&self) -> bool {
        let mut stream = self.connect();
        stream.conn.complete_io(&mut stream.sock).is_ok()
    }

    /// Waits for a line of the log with this text.
    fn until_logged(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the log ended without {text:?}");
        }
    }

    fn ask_health(&self, method: &str, path: &str) -> (u16, String) {
        exchange(TcpStream::connect(&self.health).unwrap(), method, path, b"")
    }

    /// Asks the server to end, and returns how it did, and the rest of its log.
    fn stop(mut self) -> (ExitStatus, String) {
        let pid = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        (self.process.wait().unwrap(), rest)
    }
}

fn exchange(mut stream: impl Read + Write, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    // A server that refuses an overlong body answers, and closes, before it has read all of it.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn review() -> Value {
    let pod = json!({"metadata": {"generateName": "hello-"}, "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}});
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "1f", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "team", "operation": "CREATE", "object": pod},
    })
}

#[test]
fn reviews_are_answered_on_both_paths_and_logged_in_one_line() {
    let server = Server::start();
    for path in ["/mutate", "/mutate-v1-pod"] {
        let (status, body) = server.send("POST", path, review().to_string().as_bytes());
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &answer["response"]["uid"]), (200, &json!("1f")), "{path}");
        assert_eq!(answer["response"]["patchType"], "JSONPatch", "{path}");
    }
    let (_, log) = server.stop();
    let decided: Vec<&str> = log.lines().filter(|line| line.contains("decided")).collect();
    assert_eq!(decided.len(), 2, "{log}");
    for field in ["uid=\"1f\"", "namespace=\"team\"", "name=\"hello-\"", "mode=\"hold\"", "why="] {
        assert!(decided[0].contains(field), "no {field} in {}", decided[0]);
    }
}

#[test]
fn bad_requests_have_their_answers_and_leave_the_server_alive() {
    let server = Server::start();
    let large = vec![b' '; (8 << 20) + 1];
    let cases: [(&str, &str, &[u8], u16, &str); 6] = [
        ("POST", "/mutate", b"", 400, "the body is not an AdmissionReview in JSON"),
        ("POST", "/mutate", b"{\"apiVersion\": \"v1\"", 400, "the body is not an AdmissionReview in JSON"),
        ("POST", "/mutate", b"{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}", 400, "this server answers AdmissionReview"),
        ("POST", "/mutate", &large, 413, "the body is larger than 8388608 bytes"),
        ("GET", "/mutate", b"", 405, "this path takes POST"),
        ("POST", "/elsewhere", b"", 404, "there is no \"/elsewhere\" here; there is /mutate"),
    ];
    for (method, path, body, status, text) in cases {
        let (given, answer) = server.send(method, path, body);
        assert_eq!(given, status, "{method} {path}: {answer}");
        assert!(answer.starts_with(text) || answer.contains(text), "{method} {path}: {answer}");
        assert_eq!(answer.lines().count(), 1, "{answer}");
        assert_eq!(server.ask_health("GET", "/healthz").0, 200);
    }
}

#[test]
fn health_is_served_in_plain_http() {
    let server = Server::start();
    for (method, path, status) in
        [("GET", "/healthz", 200), ("GET", "/readyz", 200), ("POST", "/readyz", 405), ("GET", "/", 404)]
    {
        assert_eq!(server.ask_health(method, path).0, status, "{method} {path}");
    }
}

#[test]
fn metrics_are_served_beside_health() {
    let server = Server::start();
    server.send("POST", "/mutate", review().to_string().as_bytes());
    server.send("POST", "/mutate", b"rubbish");
    let (status, text) = server.ask_health("GET", "/metrics");
    assert_eq!(status, 200);
    for line in [
        "istio_aux_admission_reviews_total{result=\"patched\",mode=\"hold\"} 1",
        "istio_aux_admission_reviews_total{result=\"refused\",mode=\"none\"} 1",
        "istio_aux_admission_duration_seconds_count 2",
    ] {
        assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
    }
    let expiry = text.lines().find_map(|line| line.strip_prefix("istio_aux_certificate_expiry_timestamp_seconds "));
    assert!(expiry.unwrap().parse::<i64>().unwrap() > 1_700_000_000, "{text}");
}

#[test]
fn a_changed_certificate_is_served_and_a_broken_one_is_not() {
    let mut server = Server::start();
    assert!(server.shows_its_certificate());
    server.certificate = write_certificate(server.folder.path());
    let began = Instant::now();
    while !server.shows_its_certificate() {
        assert!(began.elapsed() < PATIENCE, "the new certificate is not served");
        thread::sleep(Duration::from_millis(20));
    }
    // Half-way through a renewal.
    std::fs::write(server.folder.path().join("tls.crt"), "").unwrap();
    server.until_logged("the certificate before is kept");
    assert!(server.shows_its_certificate());
    assert_eq!(server.ask_health("GET", "/readyz").0, 200);
    assert!(server.ask_health("GET", "/metrics").1.contains("istio_aux_certificate_reload_failures_total 1"));
}

#[test]
fn sigterm_ends_it_with_0() {
    let (status, log) = Server::start().stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("stopping"), "{log}");
}

#[test]
fn unusable_certificates_are_named_in_one_line() {
    type Spoil = fn(&Path);
    let cases: [(Spoil, &str); 5] = [
        (
            |folder| std::fs::remove_file(folder.join("tls.crt")).unwrap(),
            "tls.crt cannot be used: there is no such file",
        ),
        (|folder| std::fs::write(folder.join("tls.crt"), "").unwrap(), "tls.crt cannot be used: it holds none in PEM"),
        (|folder| std::fs::write(folder.join("tls.key"), "x").unwrap(), "tls.key cannot be used: it holds none in PEM"),
        (another_key, "tls.key do not go together"),
        (an_expired_one, "tls.crt cannot be used: it is valid from "),
    ];
    for (spoil, message) in cases {
        let folder = tempfile::tempdir().unwrap();
        write_certificate(folder.path());
        spoil(folder.path());
        let output = serve(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(message) && text.lines().count() == 1, "{message}: {text}");
    }
}

fn an_expired_one(folder: &Path) {
    let mut parameters = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = KeyPair::generate().unwrap();
    std::fs::write(folder.join("tls.crt"), parameters.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
}

/// Puts the key of another certificate beside this one.
fn another_key(folder: &Path) {
    let other = tempfile::tempdir().unwrap();
    write_certificate(other.path());
    std::fs::copy(other.path().join("tls.key"), folder.join("tls.key")).unwrap();
}

#[test]
fn wrong_arguments_end_with_2_and_one_line() {
    for arguments in [&[][..], &["serve"], &["sever"], &["serve", "--tls-cert=a", "--tls-key=b", "--listen=x"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_istio-aux")).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.starts_with("istio-aux: ") && text.lines().count() == 1, "{arguments:?}: {text}");
    }
}
