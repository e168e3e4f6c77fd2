//! Runs the binary as a server: addresses, TLS, paths, rejected requests, and its end.

mod refusals;
mod server;

use std::io::{PipeWriter, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use self::server::{NAME, Server, connect, exchange, review, send_request, serve, wait_until, write_certificate};

/// Limits each wait; a test fails after it.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn review_is_answered_and_logged_until_sigterm() {
    let server = Server::start();
    let (status, body) = server.mutate(review().to_string());
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["response"]["uid"]), (200, &json!("1f")));
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    let (status, log) = server.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("stopping"), "{log}");
    let decided: Vec<&str> = log.lines().filter(|line| line.contains("decided")).collect();
    assert_eq!(decided.len(), 1, "{log}");
    for field in [r#"uid="1f""#, r#"namespace="team""#, r#"name="hello-""#, r#"mode="hold""#, "reason="] {
        assert!(decided[0].contains(field), "no {field} in {}", decided[0]);
    }
}

#[test]
fn json_log_holds_decision_and_owner() {
    let server = Server::start_with(&["--log-format=json"]);
    server.mutate(review().to_string());
    let (_, log) = server.stop();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decided = lines.filter(|line| line["message"] == "decided").collect::<Vec<_>>();
    let [line] = &decided[..] else { panic!("{log}") };
    for (field, value) in
        [("uid", "1f"), ("namespace", "team"), ("name", "hello-"), ("owner", "Job/hello"), ("mode", "hold")]
    {
        assert_eq!(line[field], value, "{line}");
    }
    assert!(line["took_us"].is_u64() && line["reason"].is_string(), "{line}");
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
fn both_ports_accept_ipv6_and_ipv4() {
    let server = Server::start();
    let config = server.client_config(None);
    for loopback in ["127.0.0.1", "[::1]"] {
        let at = |address: &str| address.replace("127.0.0.1", loopback);
        let body = review().to_string();
        let admission = connect(&at(&server.admission), &config);
        assert_eq!(exchange(admission, "POST", "/mutate", body.as_bytes()).0, 200, "{loopback}");
        let health = TcpStream::connect(at(&server.health)).unwrap();
        assert_eq!(exchange(health, "GET", "/healthz", b"").0, 200, "{loopback}");
    }
}

#[test]
fn health_answers_while_reviews_are_blocked() {
    let (mut server, log) = Server::start_with_log(&[]);
    // A full log blocks the thread that writes the next line, and each review writes one.
    fill(&log);
    let (address, config) = (server.admission.clone(), server.client_config(None));
    let pending =
        thread::spawn(move || exchange(connect(&address, &config), "POST", "/mutate", review().to_string().as_bytes()));
    for _ in 0..100 {
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(server.ask_health("GET", path).0, 200, "{path}");
        }
    }
    assert!(!pending.is_finished(), "the review was not blocked");
    drop(log);
    server.until_logged("decided");
    assert_eq!(pending.join().unwrap().0, 200);
}

/// Fills a pipe until a write to it would block.
fn fill(pipe: &PipeWriter) {
    let set = |flags| fcntl(pipe, FcntlArg::F_SETFL(flags)).unwrap();
    set(OFlag::O_NONBLOCK);
    let mut pipe = pipe;
    while pipe.write(b"\n").is_ok() {}
    set(OFlag::empty());
}

#[test]
fn client_ca_admits_only_clients_of_that_ca() {
    let directory = tempfile::tempdir().unwrap();
    let (ca, other_ca) = (ClientCa::new(), ClientCa::new());
    let file = directory.path().join("ca.crt");
    std::fs::write(&file, &ca.pem).unwrap();
    let server = Server::start_with(&["--client-ca", file.to_str().unwrap()]);
    let status = |identity: Option<&[String; 2]>| {
        let identity = identity.map(|[cert, key]| [cert.as_str(), key.as_str()]);
        let stream = connect(&server.admission, &server.client_config(identity));
        let body = review().to_string();
        let length = format!("content-length: {}", body.len());
        send_request(stream, "POST /mutate", &[&length], body.as_bytes()).split(' ').nth(1).map(str::to_owned)
    };
    assert_eq!(status(Some(&ca.client())).as_deref(), Some("200"));
    assert_eq!(status(Some(&other_ca.client())), None);
    assert_eq!(status(None), None);
    assert_eq!(server.ask_health("GET", "/healthz").0, 200, "the kubelet has no certificate");
    std::fs::write(&file, &other_ca.pem).unwrap();
    wait_until(|| status(Some(&other_ca.client())).is_some(), "the new CA is not used");
    assert_eq!(status(Some(&ca.client())), None);
}

/// Signs certificates of clients.
struct ClientCa {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl ClientCa {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(parameters, key) }
    }

    /// Returns a certificate and its key.
    fn client(&self) -> [String; 2] {
        let mut parameters = CertificateParams::default();
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        [parameters.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem()]
    }
}

#[test]
fn metrics_are_served_beside_health() {
    let server = Server::start();
    server.mutate(review().to_string());
    server.mutate("rubbish");
    let (status, text) = server.ask_health("GET", "/metrics");
    assert_eq!(status, 200);
    for line in [
        "istio_aux_admission_reviews_total{result=\"patched\",mode=\"hold\"} 1",
        "istio_aux_admission_reviews_total{result=\"refused\",mode=\"off\"} 1",
        "istio_aux_admission_reviews_total{result=\"failed\",mode=\"off\"} 0",
        "istio_aux_admission_duration_seconds_count 2",
    ] {
        assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
    }
    let expiry = text.lines().find_map(|line| line.strip_prefix("istio_aux_certificate_expiry_timestamp_seconds "));
    assert!(expiry.unwrap().parse::<i64>().unwrap() > 1_700_000_000, "{text}");
}

#[test]
fn changed_certificate_is_served_unless_broken() {
    let mut server = Server::start();
    assert!(server.shows_its_certificate());
    server.certificate = write_certificate(server.directory.path());
    wait_until(|| server.shows_its_certificate(), "the new certificate is not served");
    // It may have read the new certificate with the key before.
    let failures = |server: &Server| -> u64 {
        let text = server.ask_health("GET", "/metrics").1;
        let line = text.lines().find_map(|line| line.strip_prefix("istio_aux_certificate_reload_failures_total "));
        line.unwrap().parse().unwrap()
    };
    let before = failures(&server);
    std::fs::write(server.directory.path().join("tls.crt"), "").unwrap();
    wait_until(|| failures(&server) > before, "the failure is not counted");
    server.until_logged("the certificate before stays in use");
    assert!(server.shows_its_certificate());
    assert_eq!(server.ask_health("GET", "/readyz").0, 200);
    assert_eq!(failures(&server), before + 1);
}

#[test]
fn serves_while_the_api_server_does_not_answer() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    let cluster = format!("{{server: 'http://{}'}}", silent.local_addr().unwrap());
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {cluster}}}],
         users: [{{name: c, user: {{}}}}], contexts: [{{name: c, context: {{cluster: c, user: c}}}}]}}"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let (server, _log) = Server::start_in(&[], &[("KUBECONFIG", kubeconfig.to_str().unwrap())]);
    let (status, _) = server.mutate(review().to_string());
    assert_eq!((status, server.ask_health("GET", "/readyz").0), (200, 200));
}

#[test]
fn unusable_certificates_are_named_in_one_line() {
    type Spoil = fn(&Path);
    let cases: [(Spoil, &str); 5] = [
        (|dir| std::fs::remove_file(dir.join("tls.crt")).unwrap(), "tls.crt cannot be used: there is no such file"),
        (|dir| std::fs::write(dir.join("tls.crt"), "").unwrap(), "tls.crt cannot be used: it holds none in PEM"),
        (|dir| std::fs::write(dir.join("tls.key"), "x").unwrap(), "tls.key cannot be used: it holds none in PEM"),
        (write_another_key, "tls.key cannot be used: it does not belong to the certificate ("),
        (write_expired, "tls.crt cannot be used: it is valid from "),
    ];
    for (spoil, message) in cases {
        let directory = tempfile::tempdir().unwrap();
        write_certificate(directory.path());
        spoil(directory.path());
        let output = serve(directory.path()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.contains(message), "{message}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

fn write_expired(directory: &Path) {
    let mut parameters = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = KeyPair::generate().unwrap();
    std::fs::write(directory.join("tls.crt"), parameters.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
}

/// Replaces the key by one that does not belong to the certificate.
fn write_another_key(directory: &Path) {
    std::fs::write(directory.join("tls.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
}

#[test]
fn wrong_arguments_end_with_2_and_one_line() {
    let cases: [(&[&str], &str); 7] = [
        (&[], "the following required arguments were not provided: <--self-signed|--tls-cert <FILE>>"),
        (&["--tls-cert", "a"], "the following required arguments were not provided: --tls-key <FILE>"),
        (
            &["--self-signed", "--tls-cert", "a", "--tls-key", "b"],
            "the argument '--self-signed' cannot be used with '--tls-cert <FILE>'",
        ),
        (
            &["--tls-cert", "a", "--tls-key", "b", "--listen", "here"],
            "invalid value 'here' for '--listen <ADDRESS:PORT>': invalid socket address syntax",
        ),
        (
            &["--self-signed", "--certificate-validity", "30s"],
            "invalid value '30s' for '--certificate-validity <DURATION>': takes a minute to ten years, such as 365d",
        ),
        (
            &["--self-signed", "--shim-requests", "cpu=1m,memory=4Megs"],
            "invalid value 'memory=4Megs' for '--shim-requests <NAME=QUANTITY>': takes cpu=QUANTITY and \
             memory=QUANTITY, such as memory=4Mi",
        ),
        (&["--no-such"], "unexpected argument '--no-such' found"),
    ];
    for (arguments, message) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_istio-aux-webhook")).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text, format!("istio-aux-webhook: {message}; see --help\n"), "{arguments:?}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
