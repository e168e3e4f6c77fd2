//! Steps of Argo Workflows, with stand-ins for its executor and its controller: outputs are uploaded through the mesh before the proxy
//! ends.

use contract::names::{ARGO_KILL_PROXY_ANNOTATION, ARGO_WORKFLOW_LABEL, PROXY_CONTAINER};
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubectl::wait_for_rollout;
use e2e::manifests::{annotated, strict};
use e2e::namespace::name_of;
use e2e::stand_ins::{EXECUTOR, programs, signal_as_argos_controller, step, store};
use e2e::{Namespace, PodView, scenario};
use serde_json::Value;

/// The seconds by which an upload outlives main at least, so that the controller's signals come before its end.
const UPLOAD_SECONDS: i64 = 4;

async fn start_store(ns: &Namespace) {
    ns.create_objects([programs(), strict()]).await;
    ns.create_objects(store()).await;
    wait_for_rollout(ns.name(), "deployment/store");
}

/// Runs a step, with signals as Argo's controller sends them, until its executor has ended. Returns the executor's exit code.
async fn executor_of(ns: &Namespace, step: Value) -> i32 {
    let name = name_of(&step).to_owned();
    ns.create_object(step).await;
    signal_as_argos_controller(ns, &name).await;
    ns.pod_until(&name, "the executor's end", |pod| PodView(pod).exit_code(EXECUTOR)).await
}

#[tokio::test]
async fn control_upload_in_the_mesh_alone_is_cut_off() {
    let ns = &scenario("control-upload", &[MESH]).await;
    start_store(ns).await;
    assert_ne!(executor_of(ns, step("cut-off")).await, 0);
    // The controller has signaled the proxy, which drains for a second.
    ns.pod_until("cut-off", "the proxy's end", |pod| PodView(pod).exit_code(PROXY_CONTAINER)).await;
    assert_eq!(PodView(&ns.pod("cut-off").await).exit_code("main"), Some(0));
}

#[tokio::test]
async fn control_upload_without_a_rule_is_cut_off() {
    let ns = &scenario("control-rules", &[MESH, OPT_IN]).await;
    start_store(ns).await;
    // The user's own command stands: the rule that keeps the proxy from the signal is off.
    let killed = annotated(step("killed"), ARGO_KILL_PROXY_ANNOTATION, r#"["/bin/sh", "-c", "kill -%d 1"]"#);
    assert_ne!(executor_of(ns, killed).await, 0);
    // Without the label the containers share a PID namespace, whose PID 1 is the pod's pause.
    let mut shared = annotated(step("shared"), ARGO_KILL_PROXY_ANNOTATION, r#"["pilot-agent", "version"]"#);
    shared["metadata"]["labels"].as_object_mut().expect("it has labels").remove(ARGO_WORKFLOW_LABEL);
    assert_ne!(executor_of(ns, shared).await, 0);
}

#[tokio::test]
async fn upload_ends_before_the_proxy() {
    let ns = &scenario("upload", &[MESH, OPT_IN]).await;
    start_store(ns).await;
    assert_eq!(executor_of(ns, step("uploads")).await, 0);
    let pod = ns.until_ended("uploads", "Succeeded").await;
    let view = PodView(&pod);
    assert_eq!((view.shim_mode(), view.exit_code(PROXY_CONTAINER)), (Some("status"), Some(0)));
    let ended_at = |container| view.ended_at(container).map_or(0, |time| time.0.as_second());
    let seconds = ended_at(EXECUTOR) - ended_at("main");
    assert!(seconds >= UPLOAD_SECONDS, "the upload was over {seconds} s after main, before the signals");
    assert!(ns.logs("uploads", EXECUTOR).await.contains("uploaded"));
}
