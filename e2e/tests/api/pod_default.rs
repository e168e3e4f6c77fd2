//! The token for pipelines beside Kubeflow's `PodDefault` webhook, for which a program on this machine stands in.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use contract::names::{ACCESS_PIPELINES_LABEL, PIPELINES_TOKEN_VOLUME};
use e2e::command::{printed, run_offline};
use e2e::kubectl::Applied;
use e2e::manifests::{pod, pod_spec, shell};
use e2e::tenancy::TOKEN;
use e2e::{Namespace, scenario};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A label by which another `PodDefault` adds the same token.
const OTHER_LABEL: &str = "other-pod-default";
const WEBHOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stand-ins/pod-default-webhook.py");

/// The stand-in, which serves pods of one namespace until this is dropped.
struct Webhook {
    process: Child,
    _directory: TempDir,
    _configuration: Applied,
}

impl Webhook {
    fn start(ns: &Namespace) -> Self {
        let directory = TempDir::new().expect("the directory is made");
        let path = |file| directory.path().join(file).display().to_string();
        let [key, certificate] = ["key.pem", "certificate.pem"].map(path);
        let words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=stand-in"];
        let words = [&words[..], &["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &key, "-out", &certificate]];
        printed(&run_offline("openssl", &words.concat()));
        let mut process = Command::new("python3")
            .args([WEBHOOK, &certificate, &key])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 runs");
        let mut port = String::new();
        BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut port).expect("it prints its port");
        let ca = printed(&run_offline("base64", &["--wrap=0", &certificate]));
        let webhooks = [ACCESS_PIPELINES_LABEL, OTHER_LABEL].map(|label| {
            json!({
                "name": format!("{label}.e2e.istio-aux.io"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"url": format!("https://127.0.0.1:{}/{label}", port.trim()), "caBundle": ca},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns.name()}},
                "objectSelector": {"matchLabels": {label: "true"}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            })
        });
        // The API server calls webhooks in the order of their configurations' names: Kubeflow's comes after istio-aux and before zz-istio-aux.
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "poddefaults-e2e"},
            "webhooks": webhooks,
        });
        Self { process, _directory: directory, _configuration: Applied::new(&[configuration]) }
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn notebook(label: &str) -> Value {
    let mut pod = pod("notebook", &pod_spec("Never", &[shell("main", "true")]));
    pod["metadata"]["labels"] = json!({label: "true"});
    pod
}

/// Returns the names of the volumes that a pod gets, or its rejection.
async fn volumes(ns: &Namespace, label: &str) -> Result<Vec<String>, String> {
    let pod = ns.try_dry_run(notebook(label)).await.map_err(|error| error.to_string())?;
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    Ok(volumes.filter_map(|volume| volume["name"].as_str().map(str::to_owned)).collect())
}

#[tokio::test]
async fn token_comes_from_the_pod_default_where_there_is_one() {
    const POD_DEFAULT_VOLUME: &str = "volume-kf-pipeline-token";
    let ns = &scenario("pod-default", &[TOKEN]).await;
    let _webhook = Webhook::start(ns);
    let volumes_of_default = ns
        .until("the PodDefault's volume", async || {
            let volumes = volumes(ns, ACCESS_PIPELINES_LABEL).await.ok()?;
            volumes.iter().any(|name| name == POD_DEFAULT_VOLUME).then_some(volumes)
        })
        .await;
    assert!(!volumes_of_default.iter().any(|name| name == PIPELINES_TOKEN_VOLUME), "{volumes_of_default:?}");
    // Nor where a PodDefault by a label that istio-aux does not know has added it: two mounts at one path would be rejected.
    assert_eq!(volumes(ns, OTHER_LABEL).await.as_deref().map(without_own_token), Ok(vec![POD_DEFAULT_VOLUME]));
    assert!(
        volumes(ns, "no-pod-default").await.is_ok_and(|names| names.iter().any(|name| name == PIPELINES_TOKEN_VOLUME))
    );
}

fn without_own_token(volumes: &[String]) -> Vec<&str> {
    volumes.iter().map(String::as_str).filter(|name| !name.starts_with("kube-api-access")).collect()
}

#[tokio::test]
async fn pod_or_account_that_wants_no_token_gets_none() {
    let ns = &scenario("no-token", &[TOKEN]).await;
    let account = json!({"automountServiceAccountToken": false});
    ns.create_object(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "closed"}, "automountServiceAccountToken": false})).await;
    for refused in [account, json!({"serviceAccountName": "closed"})] {
        let mut pod = notebook("any");
        json_patch::merge(&mut pod["spec"], &refused);
        let made = ns.try_dry_run(pod).await.expect("it is admitted");
        assert!(made["spec"]["volumes"].as_array().is_none_or(Vec::is_empty), "{refused}: {}", made["spec"]["volumes"]);
    }
}
