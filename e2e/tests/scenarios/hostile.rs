//! Payloads that attack the shim. The worst outcome is the pod as it is without istio-aux: its proxy runs on, or it fails.
//! Other containers of the pod keep their files, their commands and their network. kills.rs kills the shim in each state.

use std::time::Duration;

use contract::names::{MODE_ANNOTATION, SHIM_CONTAINER, WAIT_FOR_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{NEEDS_PROXY, annotated, in_modes, job, pod, pod_spec, shell, with_memory, with_post_start};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{as_root, shared_pid_modes, shim_container, shim_log};

/// Returns a container that exits with 99 unless the proxy is ready, once a second for so many seconds.
fn needs_proxy(name: &str, seconds: u32) -> Value {
    shell(name, &format!("for n in $(seq {seconds}); do {NEEDS_PROXY}; sleep 1; done"))
}

/// Waits until the pods of all modes have succeeded, and asserts that each shim has logged each of these containers' ends once,
/// without a restart.
async fn all_succeed_unharmed(ns: &Namespace, containers: &[&str]) {
    for mode in shared_pid_modes() {
        let pod = ns.until_ended(mode, "Succeeded").await;
        let shim = shim_container(mode);
        assert_eq!(PodView(&pod).restarts(shim), Some(0), "{mode}");
        let log = ns.logs(mode, shim).await;
        for container in containers {
            // The proxy can end before the runtime has reaped the container, whose code is then not known.
            let line = format!("container exited container={container} code=");
            assert_eq!(log.matches(&line).count(), 1, "{mode}: {line:?} in\n{log}");
        }
    }
}

/// Runs a pod of these containers in each mode, and asserts that all succeed unharmed. They share the directory `/memory`.
async fn run_unharmed(ns: &Namespace, containers: &[Value]) {
    let spec = with_memory(pod_spec("Never", containers));
    ns.create_objects(in_modes(&shared_pid_modes(), &spec)).await;
    let names: Vec<&str> = containers.iter().filter_map(|container| container["name"].as_str()).collect();
    all_succeed_unharmed(ns, &names).await;
}

#[tokio::test]
async fn other_user_can_neither_signal_nor_read_the_shim() {
    // Expected: the pod ends as if nothing had been tried. On a process of the payload's own, each attempt succeeds.
    let script = "
shim=$(pidof aux-shim) || exit 90
for signal in KILL STOP TERM HUP; do kill -$signal $shim && exit 91; done
cat /proc/$shim/environ && exit 92
(: </proc/$shim/mem) && exit 93
ls /proc/$shim/fd/ && exit 94
ls /proc/$shim/root/ && exit 95
sleep 60 &
own=$!
sleep 1
cat /proc/$own/environ >/dev/null && ls /proc/$own/fd/ /proc/$own/root/ >/dev/null && (: </proc/self/mem) || exit 96
for signal in STOP TERM HUP KILL; do kill -$signal $own || exit 97; done
sleep 1";
    let ns = &scenario("hostile-other-user", &[MESH, OPT_IN]).await;
    run_unharmed(ns, &[shell("main", script)]).await;
}

#[tokio::test]
async fn shim_killed_by_a_root_payload_is_restarted() {
    // Expected: the kubelet restarts the shim, which reads the kubelet's report. In mode proxy root kills the
    // proxy's own container, as it can without istio-aux.
    let ns = &scenario("hostile-kill", &[MESH, OPT_IN]).await;
    let main = as_root(shell("main", "sleep 2; kill -9 $(pidof aux-shim)"));
    let object = annotated(pod("one", &pod_spec("Never", &[main])), MODE_ANNOTATION, "native");
    let pod = ns.run(object, "Succeeded").await;
    assert!(PodView(&pod).restarts(SHIM_CONTAINER) >= Some(1), "it was killed");
    let log = shim_log(ns, "one").await;
    assert!(log.contains("awaited containers finished known-by=kubelet"), "{log}");
    assert_eq!(log.matches("asked istio-proxy to quit").count(), 1, "{log}");
}

#[tokio::test]
async fn restart_of_the_shim_counts_against_the_backoff_limit_of_a_job() {
    let ns = &scenario("hostile-backoff", &[MESH, OPT_IN]).await;
    let killing = |name: &str, limit: u32, then: &str| {
        let main = as_root(shell("main", &format!("sleep 1; kill -9 $(pidof aux-shim); {then}")));
        let mut job = annotated(job(name, &pod_spec("OnFailure", &[main])), MODE_ANNOTATION, "native");
        job["spec"]["backoffLimit"] = json!(limit);
        job
    };
    let (fails, completes) = (killing("fails", 0, "sleep 3600"), killing("completes", 6, "sleep 2"));
    ns.create_objects([fails.clone(), completes]).await;
    let failed = ns.until_condition(&fails, &["Complete", "Failed"]).await;
    let conditions = failed["status"]["conditions"].as_array().into_iter().flatten();
    let reasons: Vec<_> = conditions.filter(|one| one["type"] == "Failed").map(|one| &one["reason"]).collect();
    assert_eq!(reasons, ["BackoffLimitExceeded"]);
    ns.until_complete("completes").await;
    let pod = ns.pod(&ns.pod_of_job("completes").await).await;
    assert_eq!(PodView(&pod).restarts(SHIM_CONTAINER), Some(1));
}

#[tokio::test]
async fn stopped_shim_leaves_the_pod_running_until_continued() {
    // Expected: while the shim is stopped, the proxy runs on. The control is `control_job_in_the_mesh_hangs_until_readmes_command`.
    let ns = &scenario("hostile-stop", &[MESH, OPT_IN]).await;
    let main = as_root(shell("main", "sleep 2; kill -STOP $(pidof aux-shim)"));
    let keeper = "until [ -e /memory/continue ]; do sleep 0.2; done; kill -CONT $(pidof aux-shim)";
    let spec = with_memory(pod_spec("Never", &[main, as_root(shell("keeper", keeper))]));
    for pod in in_modes(&shared_pid_modes(), &spec) {
        ns.create_object(annotated(pod, WAIT_FOR_ANNOTATION, "main")).await;
    }
    for mode in shared_pid_modes() {
        ns.pod_until(mode, "main's end", |pod| PodView(pod).is_stuck("main").then_some(())).await;
    }
    ns.holds_for(Duration::from_secs(8), "main has ended, and the proxy runs", async || {
        for mode in shared_pid_modes() {
            if !PodView(&ns.pod(mode).await).is_stuck("main") {
                return false;
            }
        }
        true
    })
    .await;
    for mode in shared_pid_modes() {
        ns.exec(mode, "keeper", &["touch", "/memory/continue"]);
    }
    all_succeed_unharmed(ns, &["main"]).await;
}

#[tokio::test]
async fn fork_flood_hides_no_container_from_the_shim() {
    // Expected: the pod ends as if nothing had been tried.
    let flood = "for n in $(seq 5000); do /bin/true; done";
    let ns = &scenario("hostile-forks", &[MESH, OPT_IN]).await;
    // The second container starts, and is to be seen, while the first forks.
    run_unharmed(ns, &[shell("flood", flood), needs_proxy("other", 5)]).await;
}

#[tokio::test]
async fn hosts_file_flood_leaves_late_containers_their_proxy() {
    // Expected: the proxy outlives a container that starts more than 30 s after the first write, and the pod ends.
    let flood = "
for n in $(seq 5000); do echo '127.0.0.1 flood' >> /etc/hosts; done
until [ -e /memory/hook-ended ]; do echo '127.0.0.1 flood' >> /etc/hosts; sleep 0.1; done
sleep 2";
    let ns = &scenario("hostile-hosts", &[MESH, OPT_IN]).await;
    let flood = with_post_start(as_root(shell("flood", flood)), "sleep 40; touch /memory/hook-ended");
    run_unharmed(ns, &[flood, needs_proxy("late", 8)]).await;
}
