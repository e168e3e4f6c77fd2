//! Pods that run a script, and its output.

use crate::Namespace;
use crate::command::printed;
use crate::manifests::{GREETING, annotated, job, pod, pod_spec, service, shell};
use crate::namespace::name_of;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Returns a script that asks a server for its page, and prints it and the status.
pub fn greets(host: &str) -> String {
    format!("curl -sS --max-time 20 -w ' %{{http_code}}' http://{host}/ 2>&1")
}

/// Returns a script that requests a host, or a path after it, and prints the status alone, 000 where there is no response.
pub fn asks_status(host: &str) -> String {
    format!("curl -s -o /dev/null -w '%{{http_code}}' --max-time 5 http://{host} || true")
}

/// Returns a script that runs another until its output matches a pattern of the shell, for a minute, and prints the last output:
/// proxies get a new configuration a moment after it is created.
pub fn until_said(script: &str, pattern: &str) -> String {
    format!(
        "n=0; until said=$({script}); case $said in {pattern}) true;; *) [ $n = 60 ];; esac; do n=$((n + 1)); sleep 1; done; printf %s \"$said\""
    )
}

/// Returns an address as it stands in a URL.
pub fn host_of(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

/// Gives the Service `web` an address of each family that its pods have, and returns a script that asks it by each, for a
/// minute, and what that says.
pub async fn greets_by_each_address(ns: &Namespace) -> (String, String) {
    let web = service("web", 80, 8080);
    ns.patch(&web, json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}})).await;
    let service = ns.get(&web).await;
    let addresses: Vec<_> =
        service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let server = ns.pod_with("app=web").await;
    let of_server = server.status.and_then(|status| status.pod_ips).unwrap_or_default();
    assert_eq!(addresses.len(), of_server.len(), "{addresses:?}, {of_server:?}");
    let script: Vec<_> = addresses.iter().map(|address| greets(&host_of(address))).collect();
    let expected = format!("{GREETING}\n 200").repeat(addresses.len());
    (until_said(&script.join("; "), &format!("'{expected}'")), expected)
}

/// Asserts that the living pod `client` gets the page of `web`: once within a minute, as its proxy gets its configuration a moment
/// after it is created.
pub async fn assert_heard(ns: &Namespace, when: &str) {
    assert_prints_page(ns, &until_said(&greets("web"), "*200"), when).await;
}

/// Asserts that the living pod `client` gets the page of `web` at the first request.
pub async fn assert_still_heard(ns: &Namespace, when: &str) {
    assert_prints_page(ns, &format!("printf %s \"$({})\"", greets("web")), when).await;
}

async fn assert_prints_page(ns: &Namespace, script: &str, when: &str) {
    let client = ns.pod_with("app=client").await.name_any();
    // A container runtime that was restarted takes no sessions at first.
    let session = async || {
        let output = ns.try_exec(&client, "main", &["sh", "-c", script]);
        output.status.success().then(|| printed(&output))
    };
    let said = ns.until("a session in the client's pod", session).await;
    assert_eq!(said, format!("{GREETING}\n 200"), "{when}");
}

/// Runs a pod to its end, and returns the output of its container `main`.
pub async fn output_of(ns: &Namespace, pod: Value) -> String {
    let name = name_of(&pod).to_owned();
    ns.create_object(pod).await;
    ns.final_phase(&name).await;
    ns.logs(&name, "main").await
}

/// Runs a script in a pod of its own, and returns its output.
pub async fn output_of_script(ns: &Namespace, name: &str, script: &str) -> String {
    output_of(ns, pod(name, &pod_spec("Never", &[shell("main", script)]))).await
}

/// Runs a script in a Job whose template opts out of Istio's injection, as the compiler of Kubeflow Pipelines writes it. Waits until
/// the Job is complete, and returns the script's output.
pub async fn output_of_job(ns: &Namespace, name: &str, script: &str) -> String {
    let opted_out =
        annotated(job(name, &pod_spec("Never", &[shell("main", script)])), "sidecar.istio.io/inject", "false");
    ns.create_object(opted_out).await;
    ns.until_complete(name).await;
    let pod = ns.pod_of_job(name).await;
    ns.logs(&pod, "main").await
}
