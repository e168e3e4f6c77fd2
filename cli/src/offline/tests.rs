//! Injects manifests of all kinds.

use serde_json::json;

use super::*;

fn injected(text: &str, assume_proxy: bool) -> Injected {
    inject(text, &Settings::new("shim:1"), assume_proxy).unwrap()
}

const JOB: &str = "\
# ours
apiVersion: batch/v1
kind: Job
metadata:
  name: hello
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: busybox
        command: [sh, -c, 'echo hello']
";

#[test]
fn job_gets_the_startup_hold() {
    insta::assert_snapshot!(injected(JOB, false).text);
}

#[test]
fn job_gets_the_shim_with_assumed_proxy() {
    insta::assert_snapshot!(injected(JOB, true).text);
}

#[test]
fn document_without_a_pod_is_copied() {
    let config = "# a comment\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}   # blanks\ndata: {a: \"1\"}\n";
    let text = format!("---\n# nothing\n---\n{config}---\n{JOB}");
    let injected = injected(&text, true);
    assert!(injected.text.starts_with(&format!("---\n# nothing\n---\n{config}---\n")), "{}", injected.text);
}

#[test]
fn injecting_again_changes_nothing() {
    for assume_proxy in [false, true] {
        let once = injected(JOB, assume_proxy).text;
        assert_eq!(injected(&once, assume_proxy).text, once);
    }
}

#[test]
fn pod_with_proxy_gets_no_other() {
    for list in ["containers", "initContainers"] {
        let status = json!({list: ["istio-proxy"]}).to_string();
        let mut pod = object("v1", "Pod", "", Some("Never"));
        pod["metadata"]["annotations"]["sidecar.istio.io/status"] = json!(status);
        pod["spec"]["initContainers"] = json!([]);
        let proxy = json!({"name": "istio-proxy", "restartPolicy": "Always"});
        pod["spec"][list].as_array_mut().unwrap().push(proxy);
        let once = injected(&pod.to_string(), true).text;
        assert_eq!(injected(&once, true).text, once, "{list}");
        assert_eq!(once.contains("aux-shim"), list == "containers", "{once}");
    }
}

#[test]
fn customised_proxy_stays_unchanged() {
    let customised = json!({"name": "istio-proxy", "image": "auto", "resources": {"requests": {"cpu": "11m"}}});
    let mut pod = object("v1", "Pod", "", Some("Never"));
    pod["spec"]["containers"] = json!([{"name": "main"}, customised]);
    let after: Value = serde_json::from_str(&injected(&pod.to_string(), true).text).unwrap();
    assert_eq!(after["spec"]["containers"], pod["spec"]["containers"]);
    assert_eq!(after["spec"]["initContainers"][0]["name"], "aux-shim");
    assert_eq!(after["metadata"]["annotations"]["sidecar.istio.io/status"], Value::Null);
}

#[test]
fn guaranteed_pod_stays_guaranteed() {
    let mut pod = object("v1", "Pod", "", Some("Never"));
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let after: Value = serde_json::from_str(&injected(&pod.to_string(), true).text).unwrap();
    let shim = &after["spec"]["initContainers"][0]["resources"];
    assert!(shim["limits"]["cpu"].is_string() && shim["limits"] == shim["requests"], "{shim}");
}

/// Returns an object of a kind, with a pod template where that kind has it.
fn object(api_version: &str, kind: &str, place: &str, policy: Option<&str>) -> Value {
    let mut spec = json!({"containers": [{"name": "main"}]});
    if let Some(policy) = policy {
        spec["restartPolicy"] = json!(policy);
    }
    let mut object = json!({"spec": spec});
    for field in place.rsplit('/').filter(|field| !field.is_empty()) {
        object = if field == "0" { json!([object]) } else { json!({field: object}) };
    }
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object
}

#[test]
fn every_kind_has_its_templates() {
    const REPLICATED_JOB: &str = "/spec/replicatedJobs/0/template/spec/template";
    let cases = [
        ("v1", "Pod", "", Some("Never"), Some("Never")),
        ("v1", "Pod", "", None, None),
        ("batch/v1", "Job", "/spec/template", Some("OnFailure"), Some("OnFailure")),
        ("batch/v1", "CronJob", "/spec/jobTemplate/spec/template", Some("Never"), Some("Never")),
        ("apps/v1", "Deployment", "/spec/template", None, None),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", REPLICATED_JOB, Some("Never"), Some("Never")),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", REPLICATED_JOB, None, Some("OnFailure")),
        ("kubeflow.org/v2beta1", "MPIJob", "/spec/mpiReplicaSpecs/Launcher/template", None, Some("OnFailure")),
        ("kubeflow.org/v2beta1", "MPIJob", "/spec/mpiReplicaSpecs/Worker/template", None, Some("Never")),
        ("kubeflow.org/v1", "TFJob", "/spec/tfReplicaSpecs/Worker/template", None, Some("Never")),
        ("kubeflow.org/v1", "PyTorchJob", "/spec/pytorchReplicaSpecs/Master/template", None, Some("OnFailure")),
        ("kubeflow.org/v1", "MPIJob", "/spec/mpiReplicaSpecs/Launcher/template", None, Some("Never")),
    ];
    for (api_version, kind, place, policy, expected) in cases {
        let before = object(api_version, kind, place, policy);
        let text = injected(&before.to_string(), true).text;
        let after: Value = serde_json::from_str(&text).unwrap();
        let pod = after.pointer(place).unwrap();
        let annotations = &pod["metadata"]["annotations"];
        assert!(annotations["proxy.istio.io/config"].is_string(), "{kind}: {after}");
        let args = pod["spec"]["initContainers"][0]["args"].as_array();
        let policies = args.into_iter().flatten().filter_map(|arg| arg.as_str()?.strip_prefix("--restart-policy="));
        assert_eq!(policies.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>(), "{kind}: {after}");
        assert_eq!(pod["spec"].get("restartPolicy").cloned(), policy.map(|policy| json!(policy)), "{kind}");
    }
}

#[test]
fn restart_policy_exit_code_becomes_never() {
    let mut job = object("kubeflow.org/v1", "TFJob", "/spec/tfReplicaSpecs/Worker/template", None);
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = json!("ExitCode");
    assert!(injected(&job.to_string(), true).text.contains("--restart-policy=Never"));
}

#[test]
fn workflow_gets_only_the_startup_hold() {
    let text = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata:\n  generateName: hello-\nspec:\n  entrypoint: main\n";
    let injected = injected(text, true);
    let value: Value = serde_saphyr::from_str(&injected.text).unwrap();
    assert!(value["spec"]["podMetadata"]["annotations"]["proxy.istio.io/config"].is_string(), "{}", injected.text);
    assert_eq!(
        injected.warnings,
        ["Workflow/hello-: its controller makes the containers: the webhook adds the shim, in the cluster"]
    );
}

#[test]
fn items_of_lists_are_injected() {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        object("v1", "Pod", "", Some("Never")), {"apiVersion": "v1", "kind": "Service"}, object("v1", "Pod", "", None),
    ]});
    let text = injected(&list.to_string(), false).text;
    assert_eq!(text.matches("holdApplicationUntilProxyStarts").count(), 2, "{text}");
}

#[test]
fn empty_list_and_byte_order_mark_are_copied() {
    for text in ["apiVersion: v1\nkind: List\n", "\u{feff}apiVersion: v1\nkind: ConfigMap\n"] {
        assert_eq!(injected(text, true).text, text);
    }
    let marked = format!("\u{feff}{JOB}");
    assert_eq!(injected(&marked, false).text, format!("\u{feff}{}", injected(JOB, false).text));
}

#[test]
fn mode_proxy_is_left_to_the_webhook() {
    let mut pod = object("v1", "Pod", "", Some("Never"));
    pod["metadata"] = json!({"name": "x", "annotations": {"istio-aux.io/mode": "proxy"}});
    let injected = injected(&pod.to_string(), true);
    assert_eq!(
        injected.warnings,
        ["Pod/x: mode proxy changes istio-proxy itself: the webhook does it, in the cluster"]
    );
    assert!(!injected.text.contains("aux-shim"), "{}", injected.text);
}

#[test]
fn bad_documents_are_named_by_number_and_line() {
    let cases = [
        (
            format!("{JOB}---\na: [1\n"),
            "document 2 (line 14): it is neither YAML nor JSON (unclosed bracket '[' at its line 2",
        ),
        (
            "kind: Pod\napiVersion: v1\nspec: {containers: 3}\n".to_owned(),
            "document 1 (line 1): Pod/?: the pod cannot be read: ",
        ),
        (
            "apiVersion: kubeflow.org/v1\nkind: TFJob\nspec: {tfReplicaSpecs: {Worker: {template: {spec: x}}}}\n"
                .to_owned(),
            "document 1 (line 1): TFJob/?: the pod cannot be read: ",
        ),
        ("{".to_owned(), "document 1 (line 1): it is neither YAML nor JSON ("),
    ];
    for (text, message) in cases {
        let error = inject(&text, &Settings::new("shim:1"), true).unwrap_err();
        let error = api::describe_error(error.as_ref());
        assert!(error.starts_with(message), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
