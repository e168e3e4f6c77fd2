//! What a tenant's pods are answered: by a stand-in for Kubeflow Pipelines, and by services of their own namespace.

use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{GREETING, annotated, job, pod, pod_spec, server, shell};
use e2e::tenancy::{TENANT, TOKEN, apply, header_filter, kubectl, profile_policy, reviewer, stand_in};
use e2e::{Namespace, PodView, is_complete, scenario};
use serde_json::{Value, json};

use crate::alone;

/// A script that asks the stand-in for a namespace's runs, and prints the status and the body. `more` are options of curl.
fn asks(stand_in: &str, namespace: &str, more: &str) -> String {
    let url = format!("http://ml-pipeline.{stand_in}:8888/cgi-bin/runs?namespace={namespace}");
    format!("curl -sS --max-time 20 -w ' %{{http_code}}' {more} '{url}'")
}

/// As the SDK of Kubeflow Pipelines sends its token.
const WITH_TOKEN: &str = r#"-H "Authorization: Bearer $(cat "$KF_PIPELINES_SA_TOKEN_PATH")""#;

/// Runs a pod to its end, and returns what its container printed.
async fn output_of(ns: &Namespace, name: &str, pod: Value) -> String {
    ns.create_object(pod).await;
    ns.pod_until(name, "the end", |pod| PodView(pod).final_phase()).await;
    ns.logs(name, "main").await
}

async fn answer(ns: &Namespace, name: &str, script: &str) -> String {
    output_of(ns, name, pod(name, &pod_spec("Never", &[shell("main", script)]))).await
}

fn until_available(ns: &Namespace, deployment: &str) {
    let deployment = format!("deployment/{deployment}");
    kubectl(&["-n", ns.name(), "rollout", "status", &deployment, "--timeout=150s"]);
}

async fn until_bound(ns: &Namespace) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "istio-aux-pipelines"}});
    ns.until("the binding", async || ns.find(&binding).await).await;
}

fn label(ns: &Namespace, label: &str) {
    kubectl(&["label", "namespace", ns.name(), "--overwrite", label]);
}

#[tokio::test]
async fn pipelines_answer_a_tenants_pod_by_its_token_and_its_binding() {
    let guard = alone().await;
    scenario("pipelines", &[MESH], async |pipelines: &Namespace| {
        let there = pipelines.name();
        apply(&stand_in(there));
        until_available(pipelines, "ml-pipeline");
        scenario("tenant", &[MESH, OPT_IN, TENANT], async |ns: &Namespace| {
            let own = ns.name();
            let said = answer(ns, "no-token", &asks(there, own, "")).await;
            assert_eq!(said, "stand-in: there is no token\n 401");

            label(ns, &format!("{}={}", TOKEN.0, TOKEN.1));
            until_bound(ns).await;
            let user = format!("system:serviceaccount:{own}:default");
            let said = answer(ns, "token", &asks(there, own, WITH_TOKEN)).await;
            assert_eq!(said, format!("stand-in: runs of {own} for {user}\n 200"));

            let said = answer(ns, "elsewhere", &asks(there, "default", WITH_TOKEN)).await;
            assert_eq!(said, format!("stand-in: {user} may not list runs of default\n 403"), "the stand-in's own answer");

            let said = output_of(ns, "audience", with_other_audience(&asks(there, own, WITH_TOKEN))).await;
            assert_eq!(said, "stand-in: the token is not for this server\n 401");

            label(ns, "istio-aux.io/tenancy=disabled");
            let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "istio-aux-pipelines"}});
            ns.until("the binding to go", async || ns.find(&binding).await.is_none().then_some(())).await;
            let said = answer(ns, "no-binding", &asks(there, own, WITH_TOKEN)).await;
            assert_eq!(said, format!("stand-in: {user} may not list runs of {own}\n 403"));

            ns.create_object(header_filter(there)).await;
            let said = answer(ns, "header", &until_answered(&asks(there, own, WITH_TOKEN), " 403")).await;
            assert!(said.ends_with("RBAC: access denied 403"), "by Envoy: {said}");
        })
        .await;
        kubectl(&["delete", "clusterrolebinding", &reviewer(there)]);
    })
    .await;
    drop(guard);
}

/// Asks until the answer ends like this, for a minute: proxies hear of a new configuration a moment later.
fn until_answered(script: &str, end: &str) -> String {
    format!(
        "n=0; until said=$({script}); case $said in *RBAC*'{end}') true;; *) [ $n = 60 ];; esac; do n=$((n + 1)); sleep 1; done; printf %s \"$said\""
    )
}

/// A pod that brings a token of its own, for another audience, by the same path.
fn with_other_audience(script: &str) -> Value {
    let mut main = shell("main", script);
    main["env"] = json!([{"name": "KF_PIPELINES_SA_TOKEN_PATH", "value": "/token/token"}]);
    main["volumeMounts"] = json!([{"name": "token", "mountPath": "/token"}]);
    let mut spec = pod_spec("Never", &[main]);
    let token = json!({"path": "token", "expirationSeconds": 600, "audience": "other"});
    spec["volumes"] = json!([{"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}]);
    pod("audience", &spec)
}

/// Asks a server for its page.
fn greets(host: &str) -> String {
    format!("curl -sS --max-time 20 -w ' %{{http_code}}' http://{host}/ 2>&1")
}

/// A Job whose template keeps Istio's injector away, as the compiler of Kubeflow Pipelines writes it.
fn kept_out(name: &str, script: &str) -> Value {
    annotated(job(name, &pod_spec("Never", &[shell("main", script)])), "sidecar.istio.io/inject", "false")
}

async fn said_by_job(ns: &Namespace, name: &str, script: &str) -> String {
    ns.create_object(kept_out(name, script)).await;
    ns.until(&format!("Job {name}"), async || is_complete(&ns.job(name).await).then_some(())).await;
    let pod = ns.pod_of_job(name).await;
    ns.logs(&pod, "main").await
}

#[tokio::test]
async fn a_completing_pod_reaches_services_of_its_own_profile_once_it_is_in_the_mesh() {
    scenario("profile", &[MESH, OPT_IN], async |ns: &Namespace| {
        let [strict, web @ ..] = &server()[..] else { panic!("it has objects") };
        for object in web {
            ns.create_object(object.clone()).await;
        }
        ns.create_object(profile_policy(ns.name())).await;
        until_available(ns, "web");

        let denied = until_answered(&greets("web"), " 403");
        assert!(said_by_job(ns, "outside", &denied).await.ends_with("RBAC: access denied 403"));

        label(ns, "istio-aux.io/mesh=completing");
        let admitted = format!("{GREETING}\n 200");
        assert_eq!(said_by_job(ns, "inside", &greets("web")).await, admitted);

        // By its label a pod decides for itself, and then mutual TLS is more than it has.
        ns.create_object(strict.clone()).await;
        let mut alone = pod("alone", &pod_spec("Never", &[shell("main", &until_closed(&greets("web")))]));
        alone["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "false"});
        let said = output_of(ns, "alone", alone).await;
        assert!(said.trim_end().ends_with("000"), "STRICT ends the connection: {said}");
        assert_eq!(said_by_job(ns, "strict", &greets("web")).await, admitted);

        let host = format!("web.{}", ns.name());
        scenario("other", &[MESH, OPT_IN, ("istio-aux.io/mesh", "completing")], async |other: &Namespace| {
            let said = said_by_job(other, "client", &greets(&host)).await;
            assert!(said.ends_with("RBAC: access denied 403"), "another namespace: {said}");
        })
        .await;
    })
    .await;
}

/// Asks until no answer comes, for a minute.
fn until_closed(script: &str) -> String {
    format!(
        "n=0; until said=$({script}); case $said in *' 000') true;; *) [ $n = 60 ];; esac; do n=$((n + 1)); sleep 1; done; printf %s \"$said\""
    )
}
