//! The policy profile beside the webhook: for the same pod both give the same, but for what docs/policy.md says a policy cannot do.
//! The profile is installed beside the webhook under a name of this test's, for a namespace that the webhook does not serve.

use contract::names::{
    ARGO_WORKFLOW_LABEL, DISABLED, ENABLED, INJECTION_LABEL, KATIB_TRIAL_LABEL, MODE_ANNOTATION,
    NATIVE_SIDECAR_ANNOTATION, PROXY_CONFIG_ANNOTATION, PROXY_CONTAINER, QUIT_ANNOTATION, SHIM_CONTAINER,
    STATUS_ANNOTATION, STATUS_PORT_ANNOTATION, WAIT_FOR_ANNOTATION,
};
use e2e::cluster::{Label, MESH, OPT_IN};
use e2e::command::{printed, run};
use e2e::manifests::{payload_image, pod, pod_spec, shell, without_token};
use e2e::ways::policy_version;
use e2e::{Namespace, scenario};
use json_patch::{diff, merge};
use kube::api::PostParams;
use serde_json::{Value, json};

const BINARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/images/istio-aux");
/// Opts a namespace into the copy of the policy that has this name.
const fn by_policy(name: &'static str) -> Label {
    ("e2e.istio-aux.io/policy", name)
}

/// The profile under another name, with one binding, to the namespaces of [`by_policy`].
struct Installed(String);

impl Installed {
    fn new(name: &'static str, options: &[&str]) -> Self {
        let (label, value) = by_policy(name);
        let version = format!("--api-version={}", policy_version());
        let text = printed(&run(BINARY, &[&["policy", &version], options].concat(), ""));
        let mut objects: Vec<Value> = serde_saphyr::from_str_multiple(&text).expect("manifests are YAML");
        objects.truncate(2);
        objects[0]["metadata"]["name"] = json!(name);
        objects[1]["metadata"]["name"] = json!(name);
        objects[1]["spec"]["policyName"] = json!(name);
        objects[1]["spec"]["matchResources"]["namespaceSelector"] = json!({"matchLabels": {label: value}});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let _ = printed(&run("kubectl", &["apply", "--server-side", "-f", "-"], &list));
        Self(list)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let gone = run("kubectl", &["delete", "--ignore-not-found", "-f", "-"], &self.0);
        if !gone.status.success() {
            eprintln!("the policy stays: {}", String::from_utf8_lossy(&gone.stderr));
        }
    }
}

/// What the API server makes of a pod, without what differs between two namespaces.
async fn made_of(ns: &Namespace, pod: &Value) -> Value {
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let made = match ns.try_create(pod.clone(), &parameters).await {
        Ok(made) => serde_json::to_value(made).expect("a pod is JSON"),
        Err(error) => return json!(error.to_string().replace(ns.name(), "NAMESPACE")),
    };
    let mut made = without_token(made);
    for field in ["uid", "creationTimestamp", "managedFields"] {
        made["metadata"].as_object_mut().expect("metadata is an object").remove(field);
    }
    serde_json::from_str(&made.to_string().replace(ns.name(), "NAMESPACE")).expect("it is JSON still")
}

/// A pod of two containers, and what is changed in it.
fn changed(policy: &str, metadata: &Value, spec: &Value) -> Value {
    let mut one = pod("one", &pod_spec(policy, &[shell("main", "true"), shell("metrics", "sleep 1")]));
    merge(&mut one["metadata"], metadata);
    merge(&mut one["spec"], spec);
    one
}

/// The API server has seen the policy once a pod has its shim by it.
async fn until_in_force(ns: &Namespace) {
    let plain = changed("Never", &json!({}), &json!({}));
    ns.until("the policy to be in force", async || {
        made_of(ns, &plain).await.to_string().contains(SHIM_CONTAINER).then_some(())
    })
    .await;
}

/// A pod, and what it is.
type Case = (&'static str, Value);

/// A container with something else in it.
fn with(mut container: Value, change: &Value) -> Value {
    merge(&mut container, change);
    container
}

/// A pod with an ordinary proxy, which has no command of its own. Without the token, whose random name Istio notes.
fn with_proxy_by_hand(change: &Value) -> Value {
    let proxy = with(json!({"name": PROXY_CONTAINER, "image": payload_image()}), change);
    let spec = json!({"automountServiceAccountToken": false, "containers": [shell("main", "true"), proxy]});
    changed("Never", &json!({}), &spec)
}

/// What is said of the pod, or is in its specification.
fn plain_pods() -> Vec<Case> {
    let none = json!({});
    let labelled = |key: &str, value: &str| changed("Never", &json!({"labels": {key: value}}), &json!({}));
    let specified = |spec: Value| changed("Never", &json!({}), &spec);
    vec![
        ("Never", changed("Never", &none, &none)),
        ("OnFailure", changed("OnFailure", &none, &none)),
        ("Always", changed("Always", &none, &none)),
        ("no injection, by label", labelled("sidecar.istio.io/inject", "false")),
        ("opted out", labelled(INJECTION_LABEL, DISABLED)),
        ("opted in once more", labelled(INJECTION_LABEL, ENABLED)),
        (
            "labels and annotations",
            changed("Never", &json!({"labels": {"a/b": "c"}, "annotations": {"d~/e": "f"}}), &none),
        ),
        ("hostPID", specified(json!({"hostPID": true}))),
        ("hostNetwork", specified(json!({"hostNetwork": true}))),
        ("a shared PID namespace", specified(json!({"shareProcessNamespace": true}))),
        ("no token, so no volumes", specified(json!({"automountServiceAccountToken": false}))),
        ("a volume of our name", specified(json!({"volumes": [{"name": "istio-aux", "emptyDir": {}}]}))),
        ("a proxy by hand", with_proxy_by_hand(&json!({}))),
        (
            "a proxy by hand that has a hook",
            with_proxy_by_hand(&json!({"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}})),
        ),
        (
            "a proxy by hand that holds",
            with_proxy_by_hand(&json!({"lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}})),
        ),
        ("an init container", specified(json!({"initContainers": [shell("before", "true")]}))),
    ]
}

/// Pods whose containers have resources, or policies, of their own.
fn pods_with_resources() -> Vec<Case> {
    let fixed = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "0.1", "memory": "64Mi"}});
    let both = ["main", "metrics"].map(|name| with(shell(name, "true"), &json!({"resources": fixed})));
    let both = json!({"containers": both});
    let fixed_proxy = json!({"annotations": {
        "sidecar.istio.io/proxyCPU": "100m", "sidecar.istio.io/proxyCPULimit": "100m",
        "sidecar.istio.io/proxyMemory": "128Mi", "sidecar.istio.io/proxyMemoryLimit": "128Mi",
    }});
    let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42, 43]}}]);
    let policies = json!({"containers": [
        with(shell("main", "true"), &json!({"restartPolicy": "OnFailure"})),
        with(shell("metrics", "true"), &json!({"restartPolicy": "Never", "restartPolicyRules": rules})),
    ]});
    let of_the_pod =
        json!({"resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"cpu": "3", "memory": "1Gi"}}});
    vec![
        ("Guaranteed but for the proxy", changed("Never", &json!({}), &both)),
        ("Guaranteed", changed("Never", &fixed_proxy, &both)),
        ("resources of the pod's own", changed("Never", &json!({}), &of_the_pod)),
        ("policies of containers", changed("Never", &json!({}), &policies)),
    ]
}

fn katib_trials() -> Vec<Case> {
    let trial = |collector: Value, annotations: Value| {
        let metadata = json!({"labels": {KATIB_TRIAL_LABEL: "t"}, "annotations": annotations});
        changed("Never", &metadata, &json!({"containers": [shell("main", "true"), collector]}))
    };
    let reporting = |args: &[&str]| with(shell("x", "true"), &json!({"args": args}));
    let named = with(shell("metrics-logger-and-collector", "true"), &json!({"args": ["-t", "x"]}));
    vec![
        ("a Katib trial", trial(named, json!({}))),
        ("its collector without arguments", trial(shell("metrics-collector", "true"), json!({}))),
        ("it says what to wait for", trial(reporting(&["-s-db", "db:1", "-w=true"]), json!({}))),
        ("its proxy is native", trial(reporting(&["-s-db", "db:1"]), json!({NATIVE_SIDECAR_ANNOTATION: "true"}))),
    ]
}

fn annotated_pods() -> Vec<Case> {
    let annotations: [(&str, &[&str]); 6] = [
        (WAIT_FOR_ANNOTATION, &["main", " metrics , main ", "main,mian", "mian", "istio-proxy", ""]),
        (
            QUIT_ANNOTATION,
            &[
                "http://127.0.0.1:9091/quitquitquit",
                "http://localhost:1/a?b=c, http://[::1]:9091",
                "https://127.0.0.1:1/x,http://10.0.0.1:80/x,http://127.0.0.1:65536/x",
                "http://127.0.0.1:0/x,http://127.0.0.256:1/x,http://127.0.0.1/x",
                "http://127.0.0.1:65535,http://127.1.2.3:9/x y",
            ],
        ),
        (MODE_ANNOTATION, &["auto", "native", "proxy", "istio", "hold", "off", "nativ"]),
        (STATUS_PORT_ANNOTATION, &["15099", " 15099 ", "0", "ninety", "70000"]),
        (
            PROXY_CONFIG_ANNOTATION,
            &[
                "",
                "{}",
                "{\"concurrency\": 2}",
                "{\n  concurrency: 2\n}\n",
                "concurrency: 2",
                "concurrency: 2\n# two\ntracing:\n  sampling: 10\n",
                "holdApplicationUntilProxyStarts: false",
                "{\"holdApplicationUntilProxyStarts\": false}",
                "concurrency: 2\nholdApplicationUntilProxyStarts: true",
                "statusPort: 15098",
                "just text",
                "- a\n- b",
            ],
        ),
        (NATIVE_SIDECAR_ANNOTATION, &["true", "false"]),
    ];
    let each = annotations.into_iter().flat_map(|(key, values)| values.iter().map(move |value| (key, *value)));
    let annotated = |(key, value): (&'static str, &str)| {
        (key, changed("OnFailure", &json!({"annotations": {key: value}}), &json!({})))
    };
    each.map(annotated).collect()
}

#[tokio::test]
async fn policy_and_webhook_make_the_same_of_a_pod() {
    scenario("policy", &[MESH, by_policy("istio-aux-same")], async |by_policy: &Namespace| {
        scenario("policy-webhook", &[MESH, OPT_IN], async |by_webhook: &Namespace| {
            let _installed = Installed::new("istio-aux-same", &[]);
            until_in_force(by_policy).await;
            let mut found = Vec::new();
            let all = [plain_pods(), pods_with_resources(), katib_trials(), annotated_pods()].concat();
            for (name, pod) in &all {
                let [webhook, policy] = [made_of(by_webhook, pod).await, made_of(by_policy, pod).await];
                let to_the_policys = diff(&webhook, &policy);
                if !to_the_policys.is_empty() {
                    let annotations = &pod["metadata"]["annotations"];
                    found.push(format!(
                        "{name} {annotations}: what the webhook makes is the policy's after {to_the_policys}"
                    ));
                }
            }
            assert!(found.is_empty(), "of {} pods:\n{}", all.len(), found.join("\n"));
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_has_to_be_wrapped_is_held_only_by_the_policy_and_says_why() {
    scenario("policy-wrap", &[MESH, by_policy("istio-aux-wrap")], async |ns: &Namespace| {
        let _installed = Installed::new("istio-aux-wrap", &[]);
        until_in_force(ns).await;
        let apart = changed("Never", &json!({}), &json!({"shareProcessNamespace": false}));
        let step = changed("Never", &json!({"labels": {ARGO_WORKFLOW_LABEL: "w"}}), &json!({}));
        for (pod, why) in [(apart, "shareProcessNamespace is false"), (step, "Argo Workflows signals PID 1")] {
            let made = made_of(ns, &pod).await;
            let status = made["metadata"]["annotations"][STATUS_ANNOTATION].as_str().unwrap_or_default();
            assert!(status.contains("\"mode\":\"hold\"") && status.contains(why), "{made}");
            assert!(!made.to_string().contains(SHIM_CONTAINER), "{made}");
        }
    })
    .await;
}
