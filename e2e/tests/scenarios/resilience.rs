//! What goes wrong in a pod, and must not keep it from ending.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use contract::names::{
    MODE_ANNOTATION, PROXY_CONTAINER, QUIT_ANNOTATION, SHIM_CONTAINER, STATUS_PORT_ANNOTATION, WAIT_FOR_ANNOTATION,
};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::on_cluster;
use e2e::manifests::{
    NEEDS_PROXY, annotated, in_modes, injected, job, pod, pod_spec, shell, with_memory, with_post_start,
};
use e2e::{PodView, scenario};
use serde_json::json;

use crate::{PILOT_AGENT, as_root, shared_pid_modes, shim_log, shim_modes};

#[tokio::test]
async fn killed_shim_reads_the_kubelets_report() {
    let ns = &scenario("killed-shim", &[MESH, OPT_IN]).await;
    // The other has succeeded before the kill, and will never be seen again.
    let killer = as_root(shell("killer", "sleep 3; kill -9 $(pidof aux-shim); sleep 4"));
    let spec = pod_spec("OnFailure", &[shell("main", "sleep 1"), killer]);
    let pod = ns.run(pod("two", &spec), "Succeeded").await;
    assert!(PodView(&pod).restarts(SHIM_CONTAINER) >= Some(1), "it was killed");
    let outcome = PodView(&pod).outcome().expect("the shim has ended");
    assert_eq!((outcome.known_by, outcome.asked), ("kubelet", PILOT_AGENT));
}

#[tokio::test]
async fn killed_proxy_is_not_awaited() {
    let ns = &scenario("killed-proxy", &[MESH, OPT_IN]).await;
    let killer = as_root(shell("main", "kill -9 $(pidof pilot-agent); sleep 2; exit 4"));
    let pod = ns.run(pod("one", &pod_spec("Never", &[killer])), "Failed").await;
    assert_eq!(PodView(&pod).exit_code("main"), Some(4));
    assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(137));
    let log = shim_log(ns, "one").await;
    assert_eq!(log.matches("istio-proxy ended before the awaited containers").count(), 1, "{log}");
}

#[tokio::test]
async fn late_container_is_awaited() {
    let ns = &scenario("late", &[MESH, OPT_IN]).await;
    // The kubelet starts the third when the second's hook is done.
    let slow = with_post_start(shell("slow", "sleep 21"), "sleep 20");
    let spec = pod_spec("Never", &[shell("first", "sleep 1"), slow, shell("late", &format!("sleep 3; {NEEDS_PROXY}"))]);
    ns.run(pod("three", &spec), "Succeeded").await;
    let log = shim_log(ns, "three").await;
    for name in ["first", "slow", "late"] {
        assert!(log.contains(&format!("container exited container={name} code=")), "{log}");
    }
}

#[tokio::test]
async fn changed_status_port_is_honoured() {
    let ns = &scenario("status-port", &[MESH, OPT_IN]).await;
    let object = pod("one", &pod_spec("Never", &[shell("main", "sleep 1")]));
    let pod = ns.run(annotated(object, STATUS_PORT_ANNOTATION, "15777"), "Succeeded").await;
    let outcome = PodView(&pod).outcome().expect("the shim has ended");
    assert_eq!(outcome.asked, "http://127.0.0.1:15777/quitquitquit");
}

#[tokio::test]
async fn disabled_status_port_leaves_envoys_admin_port() {
    let ns = &scenario("no-status-port", &[MESH, OPT_IN]).await;
    // Nothing holds the payload here: it waits for Envoy itself.
    let main = "until curl -sSf --max-time 5 -o /dev/null http://localhost:15000/ready; do sleep 0.2; done";
    for pod in in_modes(&shared_pid_modes(), &pod_spec("Never", &[shell("main", main)])) {
        ns.create_object(annotated(pod, STATUS_PORT_ANNOTATION, "0")).await;
    }
    for mode in shared_pid_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        assert_eq!(PodView(&pod).exit_code(PROXY_CONTAINER), Some(0), "{mode}");
        let outcome = PodView(&pod).outcome().expect("the shim has ended");
        let has_ipv6_only =
            pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).is_some_and(|ip| ip.contains(':'));
        let loopback = if has_ipv6_only { "[::1]" } else { "127.0.0.1" };
        assert_eq!(outcome.asked, format!("http://{loopback}:15000/quitquitquit"), "{mode}");
    }
}

#[tokio::test]
async fn slowly_draining_proxy_is_asked_once() {
    // Istio injects nothing here: the pod brings a stand-in for an older pilot-agent.
    let ns = &scenario("drain", &[OPT_IN]).await;
    let agent =
        shell("istio-proxy", r"printf 'HTTP/1.1 200 OK\r\n\r\n' | nc -l -p 15020 > /dev/null; sleep 6; echo drained");
    ns.run(injected(pod("one", &pod_spec("Never", &[agent, shell("main", "sleep 1")]))), "Succeeded").await;
    let log = shim_log(ns, "one").await;
    assert_eq!(log.matches("asked istio-proxy to quit").count(), 1, "{log}");
    assert!(!log.contains("WARN"), "{log}");
    assert!(ns.logs("one", PROXY_CONTAINER).await.contains("drained"));
}

#[tokio::test]
async fn exec_sessions_do_not_keep_the_pod() {
    let ns = &scenario("exec", &[MESH, OPT_IN]).await;
    let main = shell("main", "until [ -e /memory/end ]; do sleep 0.2; done");
    ns.create_object(pod("two", &with_memory(pod_spec("Never", &[main, shell("other", "sleep 1")])))).await;
    ns.pod_until("two", "its start", |pod| PodView(pod).is_ready("main").then_some(())).await;
    // One in main's own container, one in the proxy's.
    let sessions = ["main", PROXY_CONTAINER].map(|container| {
        let exec = ["--namespace", ns.name(), "exec", "two", "--container", container, "--"];
        let script = ["sh", "-c", "echo begun; exec sleep 1000"];
        let mut kubectl = on_cluster("kubectl", &[&exec[..], &script].concat());
        let mut session = kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let session = session.as_mut().expect("kubectl runs").stdout.take().expect("it is piped");
        let mut session = BufReader::new(session).lines();
        assert_eq!(session.next().and_then(Result::ok).as_deref(), Some("begun"), "{container}");
        session
    });
    ns.exec("two", "main", &["touch", "/memory/end"]);
    ns.until_ended("two", "Succeeded").await;
    let log = shim_log(ns, "two").await;
    assert_eq!(log.matches("container started container=main").count(), 1, "{log}");
    for mut session in sessions {
        assert!(session.next().is_none(), "the session has ended with its container");
    }
}

#[tokio::test]
async fn deleted_job_leaves_no_pod() {
    let ns = &scenario("deleted", &[MESH, OPT_IN]).await;
    let mut names = Vec::new();
    for mode in shim_modes() {
        let main = shell("main", "trap 'exit 1' TERM; while :; do sleep 0.1; done");
        let mut object = job(mode, &pod_spec("OnFailure", &[main]));
        // The kubelet kills none of them within the time that this waits.
        object["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(3600);
        ns.create_object(annotated(object.clone(), MODE_ANNOTATION, mode)).await;
        let name = ns.pod_of_job(mode).await;
        ns.pod_until(&name, "its start", |pod| PodView(pod).is_ready("main").then_some(())).await;
        ns.delete(&object).await;
        names.push(name);
    }
    for name in names {
        ns.until_gone(&name).await;
    }
}

#[tokio::test]
async fn container_without_an_image_keeps_the_proxy() {
    let ns = &scenario("bad-image", &[MESH, OPT_IN]).await;
    let mut never = shell("never", "true");
    never["image"] = json!("docker.io/istio-aux-cluster/no-such-image:1");
    ns.create_object(pod("two", &pod_spec("Never", &[shell("main", "sleep 1"), never]))).await;
    ns.pod_until("two", "the end of main", |pod| PodView(pod).exit_code("main")).await;
    ns.holds_for(Duration::from_secs(15), "the proxy runs: what is awaited may still start", async || {
        PodView(&ns.pod("two").await).runs(PROXY_CONTAINER)
    })
    .await;
    ns.delete_pod("two").await;
    ns.until_gone("two").await;
}

#[tokio::test]
async fn helper_with_an_endpoint_is_asked_to_quit() {
    let ns = &scenario("quit", &[MESH, OPT_IN]).await;
    // It serves one connection, then ends.
    let helper = shell("helper", "nc -l -p 9091 < /dev/null; echo was told");
    let object = pod("two", &pod_spec("Never", &[shell("main", "sleep 2"), helper]));
    let object = annotated(object, WAIT_FOR_ANNOTATION, "main");
    ns.run(annotated(object, QUIT_ANNOTATION, "http://127.0.0.1:9091/quitquitquit"), "Succeeded").await;
    let log = ns.logs("two", "helper").await;
    assert!(log.contains("POST /quitquitquit HTTP/1.1") && log.contains("was told"), "{log}");
}
