//! Argo Workflows: every kind of step ends, no pod hangs, and the outputs are what the steps wrote.

use contract::names::PROXY_CONTAINER;
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubeflow::argo::{executor_rights, final_phase, label_of, output, shell, step, workflow};
use e2e::manifests::{deployment, payload_image, pod_spec, service, strict};
use e2e::namespace::name_of;
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

/// Names the image of an S3 server whose arguments are gofakes3's.
pub(crate) const S3_IMAGE: &str = "S3_IMAGE";

/// A workflow, its final phase, and the expected output: template, parameter, value.
struct Case {
    workflow: Value,
    phase: &'static str,
    output: Option<(&'static str, &'static str, &'static str)>,
}

impl Case {
    fn new(name: &str, phase: &'static str, templates: &[Value]) -> Self {
        Self { workflow: workflow(name, templates), phase, output: None }
    }

    fn with_output(mut self, template: &'static str, parameter: &'static str, value: &'static str) -> Self {
        self.output = Some((template, parameter, value));
        self
    }

    /// Returns what is wrong with the workflow that has ended.
    fn complaint(&self, ended: &Value) -> Option<String> {
        let (name, phase) = (name_of(&self.workflow), final_phase(ended).unwrap_or_default());
        if phase != self.phase {
            return Some(format!("{name} is {phase} and not {}: {}", self.phase, ended["status"]["message"]));
        }
        let (template, parameter, value) = self.output?;
        let found = output(ended, template, parameter);
        (found != Some(value)).then(|| format!("{name}: {parameter} is {found:?} and not {value:?}"))
    }
}

fn writes(name: &str, word: &str) -> Value {
    let mut template = step(name, &format!("sleep 1; echo -n {word} > /tmp/word"));
    template["outputs"] = json!({"parameters": [{"name": "word", "valueFrom": {"path": "/tmp/word"}}]});
    template
}

/// Returns a template that succeeds where its parameter is this word.
fn expects(name: &str, word: &str) -> Value {
    let mut template = step(name, &format!("test '{{{{inputs.parameters.word}}}}' = {word}"));
    template["inputs"] = json!({"parameters": [{"name": "word"}]});
    template
}

fn cases() -> Vec<Case> {
    let mut cases = of_one_pod();
    cases.extend(of_several_pods());
    cases.extend(ended_from_outside());
    cases
}

fn of_one_pod() -> Vec<Case> {
    let mut script = json!({"name": "script", "script": shell("")});
    script["script"]["command"] = json!(["sh"]);
    script["script"]["source"] = json!("echo hello > /tmp/word");
    script["outputs"] = json!({"parameters": [{"name": "word", "valueFrom": {"path": "/tmp/word"}}]});
    let mut sidecar =
        step("sidecar", "sleep 1; curl -sSf --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8080/");
    sidecar["sidecars"] = json!([{
        "name": "server", "image": payload_image(), "command": ["httpd", "-f", "-p", "8080", "-h", "/www"],
    }]);
    let mut set =
        json!({"name": "set", "containerSet": {"containers": [shell("sleep 1"), shell("echo -n hello > /tmp/word")]}});
    for (container, name) in
        set["containerSet"]["containers"].as_array_mut().into_iter().flatten().zip(["first", "main"])
    {
        container["name"] = json!(name);
    }
    set["containerSet"]["containers"][1]["dependencies"] = json!(["first"]);
    set["outputs"] = json!({"parameters": [{"name": "word", "valueFrom": {"path": "/tmp/word"}}]});
    vec![
        Case::new("plain", "Succeeded", &[writes("plain", "hello")]).with_output("plain", "word", "hello"),
        Case::new("instant", "Succeeded", &[step("instant", "true")]),
        Case::new("early", "Succeeded", &[asks_at_once("early")]),
        Case::new("failing", "Failed", &[step("failing", "sleep 1; exit 3")]),
        Case::new("script", "Succeeded", &[script]).with_output("script", "word", "hello"),
        Case::new("sidecar", "Succeeded", &[sidecar]),
        Case::new("set", "Succeeded", &[set]).with_output("set", "word", "hello"),
    ]
}

fn of_several_pods() -> Vec<Case> {
    let given = |node: &str| json!({"parameters": [{"name": "word", "value": format!("{{{{{node}.outputs.parameters.word}}}}")}]});
    let steps = json!({"name": "all", "steps": [
        [{"name": "produce", "template": "produce"}],
        [{"name": "consume", "template": "consume", "arguments": given("steps.produce")}],
    ]});
    let dag = json!({"name": "all", "dag": {"tasks": [
        {"name": "produce", "template": "produce"},
        {"name": "left", "template": "consume", "depends": "produce", "arguments": given("tasks.produce")},
        {"name": "right", "template": "consume", "depends": "produce", "arguments": given("tasks.produce")},
        {"name": "last", "template": "last", "depends": "left && right"},
    ]}});
    let daemon = json!({"name": "all", "steps": [
        [{"name": "server", "template": "server"}],
        [{"name": "client", "template": "client",
          "arguments": {"parameters": [{"name": "word", "value": "{{steps.server.ip}}"}]}}],
    ]});
    let mut server = step("server", "exec httpd -f -p 8080 -h /www");
    server["daemon"] = json!(true);
    server["container"]["readinessProbe"] = json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1});
    let mut client = expects("client", "");
    client["container"] =
        shell("curl -sSf --retry 10 --retry-connrefused --retry-delay 1 http://{{inputs.parameters.word}}:8080/");
    let mut again = step("again", "sleep 1; test '{{retries}}' -gt 0");
    again["retryStrategy"] = json!({"limit": "2"});
    vec![
        Case::new("steps", "Succeeded", &[steps, writes("produce", "hello"), expects("consume", "hello")])
            .with_output("produce", "word", "hello"),
        Case::new(
            "dag",
            "Succeeded",
            &[dag, writes("produce", "hello"), expects("consume", "hello"), writes("last", "bye")],
        )
        .with_output("last", "word", "bye"),
        Case::new("daemon", "Succeeded", &[daemon, server, client]),
        Case::new("retries", "Succeeded", &[again]),
    ]
}

/// Returns workflows whose step would run for a quarter of an hour.
fn ended_from_outside() -> Vec<Case> {
    let long = || step("long", "sleep 900");
    let mut deadline = Case::new("deadline", "Failed", &[long()]);
    deadline.workflow["spec"]["templates"][0]["activeDeadlineSeconds"] = json!(10);
    vec![deadline, Case::new("stopped", "Failed", &[long()]), Case::new("terminated", "Failed", &[long()])]
}

/// Ends a workflow once its step runs, as `argo stop` and `argo terminate` do.
async fn shut_down(ns: &Namespace, name: &str, how: &str) {
    ns.until_a_pod(&label_of(name), "the step", |pod| pod.runs("main")).await;
    ns.patch(&workflow(name, &[step("long", "")]), json!({"spec": {"shutdown": how}})).await;
}

async fn until_ended(ns: &Namespace, workflow: &Value) -> Value {
    ns.until(&format!("workflow {} to end", name_of(workflow)), async || {
        let now = ns.get(workflow).await;
        final_phase(&now).is_some().then_some(now)
    })
    .await
}

/// Waits until no pod of a workflow is left that has not ended.
async fn until_no_pod_runs(ns: &Namespace, name: &str) {
    ns.until(&format!("the pods of workflow {name} to end"), async || {
        let pods = ns.pods_with(&label_of(name)).await;
        pods.iter().all(|pod| PodView(pod).final_phase().is_some()).then_some(())
    })
    .await;
}

/// Returns a step whose first instruction is a request. Its proxy has so little CPU that it starts later than Argo's executor.
fn asks_at_once(name: &str) -> Value {
    let mut template = step(name, "curl -sSf http://istiod.istio-system:15014/version");
    template["metadata"] = json!({"annotations": {"sidecar.istio.io/proxyCPULimit": "100m"}});
    template
}

pub(crate) async fn control_step_in_the_mesh_alone_runs_before_its_proxy() {
    let ns = &scenario("control-argo", &[MESH]).await;
    ns.create_objects(executor_rights()).await;
    let early = workflow("early", &[asks_at_once("early")]);
    ns.create_object(early.clone()).await;
    assert_eq!(final_phase(&until_ended(ns, &early).await), Some("Failed"));
}

pub(crate) async fn every_kind_of_step_ends_with_its_outputs() {
    let ns = &scenario("argo", &[MESH, OPT_IN]).await;
    ns.create_objects(executor_rights()).await;
    let cases = cases();
    ns.create_objects(cases.iter().map(|case| case.workflow.clone())).await;
    shut_down(ns, "stopped", "Stop").await;
    shut_down(ns, "terminated", "Terminate").await;
    let mut complaints = Vec::new();
    for case in &cases {
        let ended = until_ended(ns, &case.workflow).await;
        until_no_pod_runs(ns, name_of(&case.workflow)).await;
        complaints.extend(case.complaint(&ended));
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Returns an S3 server in the mesh that takes mutual TLS only, so slow that an upload takes longer than Argo's controller
/// takes to look at its workflow again.
fn s3_server() -> [Value; 4] {
    let serve = json!({
        "name": "s3", "image": std::env::var(S3_IMAGE).expect("the test needs it"),
        "args": ["-backend", "memory", "-autobucket", "-host", ":9000"],
        "readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "1m"}, "limits": {"cpu": "10m"}},
    });
    [
        strict(),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"},
            "stringData": {"key": "user", "secret": "anything"},
        }),
        service("s3", 9000, 9000),
        deployment("s3", &pod_spec("Always", &[serve])),
    ]
}

async fn start_s3(ns: &Namespace) {
    ns.create_objects(s3_server()).await;
    ns.until_a_pod("app=s3", "readiness", |pod| pod.is_ready("s3")).await;
}

/// Returns the location of an artifact in the S3 server.
fn in_s3(key: &str) -> Value {
    let secret = |field: &str| json!({"name": "s3", "key": field});
    json!({
        "endpoint": "s3:9000", "insecure": true, "bucket": "artifacts", "key": key,
        "accessKeySecret": secret("key"), "secretKeySecret": secret("secret"),
    })
}

/// Returns a workflow of which one step uploads some megabytes, and another reads and compares them. The upload is one request:
/// the server does not read the chunks of several. The reader is not an input artifact: Argo downloads those before the proxy runs.
fn artifact_workflow() -> Value {
    let all = json!({"name": "all", "steps": [
        [{"name": "upload", "template": "upload"}],
        [{"name": "compare", "template": "compare", "arguments": {
            "parameters": [{"name": "sum", "value": "{{steps.upload.outputs.parameters.sum}}"}],
        }}],
    ]});
    let mut upload = step("upload", "head -c 15000000 /dev/urandom > /tmp/data; sha256sum < /tmp/data > /tmp/sum");
    upload["outputs"] = json!({
        "artifacts": [{"name": "data", "path": "/tmp/data", "archive": {"none": {}}, "s3": in_s3("data")}],
        "parameters": [{"name": "sum", "valueFrom": {"path": "/tmp/sum"}}],
    });
    // A proxy that is told to end does so while the upload is under way.
    upload["metadata"]["annotations"] = json!({"proxy.istio.io/config": "terminationDrainDuration: 1s"});
    let compare = "test \"$(curl -sSf http://s3:9000/artifacts/data | sha256sum)\" = '{{inputs.parameters.sum}}'";
    let mut compare = step("compare", compare);
    compare["inputs"] = json!({"parameters": [{"name": "sum"}]});
    workflow("artifact", &[all, upload, compare])
}

/// Argo's controller ends every container that is left when `main` ends (argo-workflows#12919).
/// Then its executor reaches neither the S3 server nor the API server.
pub(crate) async fn control_upload_in_the_mesh_alone_loses_its_proxy() {
    let ns = &scenario("control-s3", &[MESH]).await;
    ns.create_objects(executor_rights()).await;
    start_s3(ns).await;
    let artifact = artifact_workflow();
    ns.create_object(artifact.clone()).await;
    let ended = until_ended(ns, &artifact).await;
    assert_ne!(final_phase(&ended), Some("Succeeded"));
    // What the executor says of its broken connection depends on the moment, so the containers' ends are looked at.
    let pods = ns.pods_with(&label_of("artifact")).await;
    let is_cut_off = |pod: PodView| {
        let (proxy, wait) = (pod.ended_at(PROXY_CONTAINER), pod.ended_at("wait"));
        pod.exit_code("main") == Some(0)
            && proxy.is_some()
            && proxy <= wait
            && pod.exit_code("wait").is_some_and(|code| code != 0)
    };
    assert!(pods.iter().map(PodView).any(is_cut_off), "{}", ended["status"]);
}

pub(crate) async fn artifact_is_uploaded_before_the_proxy_ends() {
    let ns = &scenario("argo-s3", &[MESH, OPT_IN]).await;
    ns.create_objects(executor_rights()).await;
    start_s3(ns).await;
    let artifact = artifact_workflow();
    ns.create_object(artifact.clone()).await;
    let ended = until_ended(ns, &artifact).await;
    until_no_pod_runs(ns, "artifact").await;
    assert_eq!(final_phase(&ended), Some("Succeeded"), "{}", ended["status"]["message"]);
    let pods = ns.pods_with(&label_of("artifact")).await;
    let seconds_of_upload = pods.iter().map(|pod| upload_time(PodView(pod))).max().unwrap_or_default();
    assert!(seconds_of_upload >= 4, "the upload was over too soon after main had ended: {seconds_of_upload} s");
}

/// Returns the seconds by which the executor has outlived main.
fn upload_time(pod: PodView) -> i64 {
    let ended_at = |container| pod.ended_at(container).map_or(0, |time| time.0.as_second());
    ended_at("wait") - ended_at("main")
}
