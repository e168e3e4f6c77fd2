//! What goes wrong in a pod, and must not keep it from ending.

use contract::names::{PROXY_CONTAINER, QUIT_ANNOTATION, SHIM_CONTAINER, STATUS_PORT_ANNOTATION, WAIT_FOR_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{annotated, container, pod, pod_spec, shell};
use e2e::{Namespace, PodView, scenario};
use serde_json::json;

use crate::{as_root, final_phase};

#[tokio::test]
async fn killed_shim_goes_on_where_it_was() {
    scenario("killed-shim", &[MESH, OPT_IN], async |ns: &Namespace| {
        // The other has succeeded before the kill, and will never be seen again.
        let killer = as_root(shell("killer", "sleep 3; kill -9 $(pidof aux-shim); sleep 4"));
        let spec = pod_spec("OnFailure", &[shell("main", "sleep 1"), killer]);
        ns.create_object(pod("two", &spec)).await;
        assert_eq!(final_phase(ns, "two").await, "Succeeded");
        let pod = ns.pod("two").await;
        assert!(PodView(&pod).restarts(SHIM_CONTAINER) >= Some(1), "it was killed");
        let log = ns.logs("two", SHIM_CONTAINER).await;
        assert!(log.contains("took up what was seen before"), "{log}");
        assert!(log.contains("asked istio-proxy to quit"), "{log}");
    })
    .await;
}

#[tokio::test]
async fn command_that_does_not_exist_ends_like_any_other() {
    scenario("start-error", &[MESH, OPT_IN], async |ns: &Namespace| {
        let broken = container("broken", &["/no/such/command"]);
        ns.create_object(pod("two", &pod_spec("Never", &[broken, shell("main", "sleep 2")]))).await;
        assert_eq!(final_phase(ns, "two").await, "Failed");
        let pod = ns.pod("two").await;
        assert_eq!(PodView(&pod).exit_code("broken"), Some(128));
        assert_eq!(PodView(&pod).exit_code("main"), Some(0));
        assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(0));
    })
    .await;
}

#[tokio::test]
async fn proxy_that_was_killed_is_not_waited_for() {
    scenario("killed-proxy", &[MESH, OPT_IN], async |ns: &Namespace| {
        let killer = as_root(shell("main", "kill -9 $(pidof pilot-agent); sleep 2; exit 4"));
        ns.create_object(pod("one", &pod_spec("Never", &[killer]))).await;
        assert_eq!(final_phase(ns, "one").await, "Failed");
        let pod = ns.pod("one").await;
        assert_eq!(PodView(&pod).exit_code("main"), Some(4));
        assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(137));
        let log = ns.logs("one", SHIM_CONTAINER).await;
        assert_eq!(log.matches("istio-proxy ended before the awaited containers").count(), 1, "{log}");
    })
    .await;
}

#[tokio::test]
async fn container_that_starts_late_is_awaited() {
    scenario("late", &[MESH, OPT_IN], async |ns: &Namespace| {
        // The kubelet starts the third when the second's hook is done.
        let mut slow = shell("slow", "sleep 21");
        slow["lifecycle"] = json!({"postStart": {"exec": {"command": ["sleep", "20"]}}});
        let spec = pod_spec("Never", &[shell("first", "true"), slow, shell("late", "sleep 3")]);
        ns.create_object(pod("three", &spec)).await;
        assert_eq!(final_phase(ns, "three").await, "Succeeded");
        let pod = ns.pod("three").await;
        let ended_at = |container| PodView(&pod).ended_at(container).cloned().expect("it has ended");
        assert!(ended_at(PROXY_CONTAINER) >= ended_at("late"));
        let log = ns.logs("three", SHIM_CONTAINER).await;
        for name in ["first", "slow", "late"] {
            assert!(log.contains(&format!("container exited container={name} code=")), "{log}");
        }
    })
    .await;
}

#[tokio::test]
async fn changed_status_port_is_honoured() {
    scenario("status-port", &[MESH, OPT_IN], async |ns: &Namespace| {
        let object = pod("one", &pod_spec("Never", &[shell("main", "true")]));
        ns.create_object(annotated(object, STATUS_PORT_ANNOTATION, "15777")).await;
        assert_eq!(final_phase(ns, "one").await, "Succeeded");
    })
    .await;
}

#[tokio::test]
async fn helper_with_an_endpoint_is_ended_too() {
    scenario("quit", &[MESH, OPT_IN], async |ns: &Namespace| {
        // It serves one connection, then ends.
        let helper = shell("helper", "nc -l -p 9091 < /dev/null; echo was told");
        let object = pod("two", &pod_spec("Never", &[shell("main", "sleep 2"), helper]));
        let object = annotated(object, WAIT_FOR_ANNOTATION, "main");
        ns.create_object(annotated(object, QUIT_ANNOTATION, "http://127.0.0.1:9091/quitquitquit")).await;
        assert_eq!(final_phase(ns, "two").await, "Succeeded");
        let log = ns.logs("two", "helper").await;
        assert!(log.contains("POST /quitquitquit HTTP/1.1") && log.contains("was told"), "{log}");
    })
    .await;
}
