//! The answers to a profile's pods: of a stand-in for Kubeflow Pipelines, and of services of their own namespace.

use e2e::clients::{greets, output_of, output_of_job, output_of_script, until_said};
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubectl::{apply, wait_for_rollout};
use e2e::manifests::{GREETING, pod, pod_spec, server, shell};
use e2e::scenario;
use e2e::tenancy::{
    TENANT, TOKEN, WITH_TOKEN, asks, header_filter, install, label, name_accounts, profile, stand_in, until_bound,
    until_unbound,
};
use serde_json::{Value, json};

#[tokio::test]
async fn pipelines_answer_by_the_token_and_the_binding() {
    install();
    let pipelines = &scenario("pipelines", &[MESH]).await;
    let there = pipelines.name();
    let _stand_in = stand_in(there);
    wait_for_rollout(pipelines.name(), "deployment/ml-pipeline");
    let ns = &scenario("tenant", &[MESH, OPT_IN, TENANT]).await;
    let own = ns.name();
    let answer = output_of_script(ns, "no-token", &asks(there, own, "")).await;
    assert_eq!(answer, "stand-in: there is no token\n 401");

    label(ns, &format!("{}={}", TOKEN.0, TOKEN.1));
    name_accounts(ns, "default");
    until_bound(ns).await;
    let user = format!("system:serviceaccount:{own}:default");
    let answer = output_of_script(ns, "token", &asks(there, own, WITH_TOKEN)).await;
    assert_eq!(answer, format!("stand-in: runs of {own} for {user}\n 200"));

    let answer = output_of_script(ns, "elsewhere", &asks(there, "default", WITH_TOKEN)).await;
    assert_eq!(answer, format!("stand-in: {user} may not list runs of default\n 403"), "the stand-in's own answer");

    let answer = output_of(ns, with_other_audience(&asks(there, own, WITH_TOKEN))).await;
    assert_eq!(answer, "stand-in: the token is not for this server\n 401");

    label(ns, "istio-aux.io/tenancy=disabled");
    until_unbound(ns).await;
    let answer = output_of_script(ns, "no-binding", &asks(there, own, WITH_TOKEN)).await;
    assert_eq!(answer, format!("stand-in: {user} may not list runs of {own}\n 403"));

    ns.create_object(header_filter(there)).await;
    let answer = output_of_script(ns, "header", &until_said(&asks(there, own, WITH_TOKEN), "*RBAC*403")).await;
    assert!(answer.ends_with("RBAC: access denied 403"), "by Envoy: {answer}");
}

/// Returns a pod that brings a token of its own, for another audience, by the same path.
fn with_other_audience(script: &str) -> Value {
    let mut main = shell("main", script);
    main["env"] = json!([{"name": "KF_PIPELINES_SA_TOKEN_PATH", "value": "/token/token"}]);
    main["volumeMounts"] = json!([{"name": "token", "mountPath": "/token"}]);
    let mut spec = pod_spec("Never", &[main]);
    let token = json!({"path": "token", "expirationSeconds": 600, "audience": "other"});
    spec["volumes"] = json!([{"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}]);
    pod("audience", &spec)
}

#[tokio::test]
async fn pod_in_the_mesh_reaches_its_profiles_services() {
    install();
    let ns = &scenario("profile", &[MESH, OPT_IN]).await;
    let [strict, web @ ..] = &server()[..] else { panic!("it has objects") };
    apply(&profile(ns.name()));
    ns.create_objects(web.iter().cloned()).await;
    wait_for_rollout(ns.name(), "deployment/web");

    let denied = until_said(&greets("web"), "*RBAC*403");
    assert!(output_of_job(ns, "outside", &denied).await.ends_with("RBAC: access denied 403"));

    label(ns, "istio-aux.io/mesh=run-to-completion");
    let admitted = format!("{GREETING}\n 200");
    assert_eq!(output_of_job(ns, "inside", &greets("web")).await, admitted);

    // By its label a pod decides for itself, and then mutual TLS is more than it has.
    ns.create_object(strict.clone()).await;
    let mut alone = pod("alone", &pod_spec("Never", &[shell("main", &until_said(&greets("web"), "*' 000'"))]));
    alone["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "false"});
    let answer = output_of(ns, alone).await;
    assert!(answer.trim_end().ends_with("000"), "STRICT ends the connection: {answer}");
    assert_eq!(output_of_job(ns, "strict", &greets("web")).await, admitted);

    let host = format!("web.{}", ns.name());
    let other = &scenario("other", &[MESH, OPT_IN, ("istio-aux.io/mesh", "run-to-completion")]).await;
    let answer = output_of_job(other, "client", &greets(&host)).await;
    assert!(answer.ends_with("RBAC: access denied 403"), "another namespace: {answer}");
}
