//! The binary as a server: TLS, paths, refusals, the end.

mod refusals;
mod server;

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use self::server::{NAME, Server, review, serve, write_certificate};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);

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
fn logs_in_json_hold_what_was_decided_for_whom() {
    let server = Server::start_with(&["--log-format=json"]);
    let mut review = review();
    review["request"]["object"]["metadata"]["ownerReferences"] =
        json!([{"kind": "Job", "name": "hello", "controller": true}]);
    server.send("POST", "/mutate", review.to_string().as_bytes());
    let (_, log) = server.stop();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decided = lines.filter(|line| line["message"] == "decided").collect::<Vec<_>>();
    let [line] = &decided[..] else { panic!("{log}") };
    for (field, value) in
        [("uid", "1f"), ("namespace", "team"), ("name", "hello-"), ("owner", "Job/hello"), ("mode", "hold")]
    {
        assert_eq!(line[field], value, "{line}");
    }
    assert!(line["took_us"].is_u64() && line["why"].is_string(), "{line}");
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
        let last = text.lines().last().unwrap_or_default();
        assert!(last.contains(message), "{message}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
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
