//! Payloads that attack the shim. The worst outcome is the pod as it is without istio-aux: its proxy runs on, or it fails.
//! Other containers of the pod keep their files, their commands and their network. kills.rs kills the shim in each state.

use std::time::Duration;

use contract::names::{LOCK_DIR, LOCK_VOLUME, MODE_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER, WAIT_FOR_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::command::{printed, run};
use e2e::manifests::{annotated, pod, pod_spec, shell, with_memory};
use e2e::{Namespace, PodView, scenario};
use serde_json::{Value, json};

use crate::{NEEDS_PROXY, as_root, shared_pid_modes, shim_container, shim_log};

/// Returns a container that exits with 99 unless the proxy is ready, once a second for so many seconds.
fn needs_proxy(name: &str, seconds: u32) -> Value {
    shell(name, &format!("touch /memory/{name}-started; for n in $(seq {seconds}); do {NEEDS_PROXY}; sleep 1; done"))
}

/// Adds a `postStart` hook. The kubelet starts no other container until the hook has ended.
fn with_post_start(mut container: Value, script: &str) -> Value {
    container["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", script]}}});
    container
}

/// Creates a pod in a mode; its containers share the directory `/memory`.
async fn create(ns: &Namespace, name: &str, mode: &str, policy: &str, containers: &[Value]) {
    let spec = with_memory(pod_spec(policy, containers));
    ns.create_object(annotated(pod(name, &spec), MODE_ANNOTATION, mode)).await;
}

/// Waits until a pod has succeeded, and asserts that its shim has logged each of these containers' ends once, without a restart.
async fn succeeds_unharmed(ns: &Namespace, name: &str, mode: &str, containers: &[&str]) {
    assert_eq!(ns.final_phase(name).await, "Succeeded", "{name}");
    let shim = shim_container(mode);
    assert_eq!(PodView(&ns.pod(name).await).restarts(shim), Some(0), "{name}");
    let log = ns.logs(name, shim).await;
    for container in containers {
        // The proxy can end before the runtime has reaped the container, whose code is then not known.
        let line = format!("container exited container={container} code=");
        assert_eq!(log.matches(&line).count(), 1, "{name}: {line:?} in\n{log}");
    }
}

#[tokio::test]
async fn other_user_can_neither_signal_nor_read_the_shim() {
    // Expected: the pod ends as if nothing had been tried.
    let script = "
shim=$(pidof aux-shim) || exit 90
for signal in KILL STOP TERM HUP; do kill -$signal $shim && exit 91; done
cat /proc/$shim/environ && exit 92
cat /proc/$shim/mem && exit 93
ls /proc/$shim/fd/ && exit 94
ls /proc/$shim/root/ && exit 95
sleep 1";
    scenario("hostile-other-user", &[MESH, OPT_IN], async |ns: &Namespace| {
        for mode in shared_pid_modes() {
            create(ns, mode, mode, "Never", &[shell("main", script)]).await;
        }
        for mode in shared_pid_modes() {
            succeeds_unharmed(ns, mode, mode, &["main"]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn shim_killed_by_a_root_payload_is_restarted() {
    // Expected: the kubelet restarts the shim, which sees that the payload has gone. In modes proxy and wrap root kills the
    // proxy's own container, as it can without istio-aux.
    scenario("hostile-kill", &[MESH, OPT_IN], async |ns: &Namespace| {
        // By then the shim has recorded the container's start.
        let main = as_root(shell("main", "sleep 2; kill -9 $(pidof aux-shim)"));
        create(ns, "one", "native", "Never", &[main]).await;
        assert_eq!(ns.final_phase("one").await, "Succeeded");
        assert!(PodView(&ns.pod("one").await).restarts(SHIM_CONTAINER) >= Some(1), "it was killed");
        let log = shim_log(ns, "one").await;
        assert!(log.contains("restored what was observed before"), "{log}");
        assert_eq!(log.matches("asked istio-proxy to quit").count(), 1, "{log}");
    })
    .await;
}

#[tokio::test]
async fn stopped_shim_leaves_the_pod_running_until_continued() {
    // Expected: while the shim is stopped, the proxy runs on. The control is `control_job_in_the_mesh_alone_does_not_complete`.
    scenario("hostile-stop", &[MESH, OPT_IN], async |ns: &Namespace| {
        let main = as_root(shell("main", "sleep 2; kill -STOP $(pidof aux-shim)"));
        let keeper = "until [ -e /memory/continue ]; do sleep 0.2; done; kill -CONT $(pidof aux-shim)";
        let spec = with_memory(pod_spec("Never", &[main, as_root(shell("keeper", keeper))]));
        for mode in shared_pid_modes() {
            let object = annotated(pod(mode, &spec), MODE_ANNOTATION, mode);
            ns.create_object(annotated(object, WAIT_FOR_ANNOTATION, "main")).await;
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
            let exec = ["-n", ns.name(), "exec", mode, "-c", "keeper", "--", "touch", "/memory/continue"];
            drop(printed(&run("kubectl", &exec, "")));
        }
        for mode in shared_pid_modes() {
            succeeds_unharmed(ns, mode, mode, &["main"]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn fork_flood_hides_no_container_from_the_shim() {
    // Expected: the pod ends as if nothing had been tried.
    let flood = "for n in $(seq 5000); do /bin/true; done";
    scenario("hostile-forks", &[MESH, OPT_IN], async |ns: &Namespace| {
        for mode in shared_pid_modes() {
            // The second container starts, and is to be seen, while the first forks.
            create(ns, mode, mode, "Never", &[shell("flood", flood), needs_proxy("other", 5)]).await;
        }
        for mode in shared_pid_modes() {
            succeeds_unharmed(ns, mode, mode, &["flood", "other"]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn hosts_file_flood_leaves_late_containers_their_proxy() {
    // Expected: the proxy outlives a container that starts more than 30 s after the first write, and the pod ends.
    let flood = "
for n in $(seq 5000); do echo '127.0.0.1 flood' >> /etc/hosts; done
until [ -e /memory/hook-ended ]; do echo '127.0.0.1 flood' >> /etc/hosts; sleep 0.1; done
sleep 2";
    scenario("hostile-hosts", &[MESH, OPT_IN], async |ns: &Namespace| {
        let flood = with_post_start(as_root(shell("flood", flood)), "sleep 40; touch /memory/hook-ended");
        for mode in shared_pid_modes() {
            create(ns, mode, mode, "Never", &[flood.clone(), needs_proxy("late", 8)]).await;
        }
        for mode in shared_pid_modes() {
            succeeds_unharmed(ns, mode, mode, &["flood", "late"]).await;
        }
    })
    .await;
}

/// What a wrapped container plants in its lock directory: in place of its own file, and where it guesses another container's.
const TRAPS: [(&str, &str); 6] = [
    ("fifo", "rm lock; mkfifo lock other"),
    ("symlink", "rm lock; ln -s /etc/passwd lock; ln -s /etc/passwd other"),
    ("directory", "rm lock; mkdir lock other; touch other/lock"),
    ("many-files", "for n in $(seq 2000); do : > file-$n; done"),
    ("forged-exit", "printf 'started 1\\nexited 0\\n' > lock; mkdir other; cp lock other/"),
    // The shim's own binary holds the lock, until the container ends.
    (
        "held-lock",
        "rm lock; /istio-aux/aux-shim wrap --lock-dir=/istio-aux-locks -- sleep 86400 & until [ -s lock ]; do sleep 0.1; done",
    ),
];

/// Returns the containers of a pod with a trap. `other` is created once the trap is there, and runs as root. `hostile` exits
/// with this code when `other` has started; its next attempt succeeds. It waits until its own start has been read: a payload
/// that takes its report away sooner keeps its pod from ending, as it would without istio-aux.
fn trapped(trap: &str, exit_code: u8) -> [Value; 2] {
    let script = format!(
        "if [ -e /memory/planted ]; then sleep 2; exit 0; fi
cd /istio-aux-locks || exit 90
sleep 2
{trap}
touch /memory/planted
until [ -e /memory/other-started ]; do sleep 0.1; done
exit {exit_code}"
    );
    let hostile = with_post_start(shell("hostile", &script), "until [ -e /memory/planted ]; do sleep 0.1; done");
    let mut other = needs_proxy("other", 3);
    let script = other["command"][2].as_str().expect("it is a script").to_owned();
    let files = "[ ! -e /istio-aux-locks/other ] && grep -q ^root: /etc/passwd || exit 91";
    other["command"][2] = json!(format!("{files}; {script}; {files}; {NEEDS_PROXY}"));
    [hostile, as_root(other)]
}

#[tokio::test]
async fn lock_directory_trap_harms_no_other_container() {
    // Expected: the other container has its command, its files and its proxy, and the pod ends.
    scenario("hostile-traps", &[MESH, OPT_IN], async |ns: &Namespace| {
        for (name, trap) in TRAPS {
            create(ns, name, "wrap", "Never", &trapped(trap, 0)).await;
            assert_eq!(ns.final_phase(name).await, "Succeeded", "{name}");
            let log = ns.logs(name, PROXY_CONTAINER).await;
            assert_eq!(log.matches("container exited container=other code=0").count(), 1, "{name}: {log}");
            ns.delete_pod(name).await;
        }
    })
    .await;
}

#[tokio::test]
async fn container_in_its_own_trap_runs_its_command() {
    // Expected: both commands run to their ends. Whether the proxy is ended then is not asserted: a container that has taken
    // its own lock file away may not be able to report, and then the pod is as without istio-aux.
    scenario("hostile-own-trap", &[MESH, OPT_IN], async |ns: &Namespace| {
        for (name, trap) in TRAPS {
            let [hostile, other] = trapped(trap, 1);
            create(ns, name, "wrap", "OnFailure", &[as_root(hostile), other]).await;
            for container in ["hostile", "other"] {
                let what = format!("a successful end of {container}");
                ns.pod_until(name, &what, |pod| (PodView(pod).exit_code(container) == Some(0)).then_some(())).await;
            }
            let pod = ns.pod(name).await;
            let view = PodView(&pod);
            assert_eq!((view.restarts("hostile"), view.restarts("other")), (Some(1), Some(0)), "{name}");
            ns.delete_pod(name).await;
            ns.until_gone(name).await;
        }
    })
    .await;
}

/// Waits until the kubelet has evicted a pod because this volume exceeds its size limit.
async fn is_evicted_for(ns: &Namespace, volume: &str) {
    assert_eq!(ns.final_phase("one").await, "Failed");
    let status = ns.pod("one").await.status.unwrap_or_default();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert!(status.message.is_some_and(|message| message.contains(&format!("\"{volume}\""))), "it says the volume");
}

#[tokio::test]
async fn full_lock_directory_evicts_the_pod() {
    const FILL: &str = "dd if=/dev/zero of=$DIRECTORY/fill bs=1024 count=4096 && sleep 86400";
    // Expected: the kubelet measures volumes once a minute or two, and evicts the pod that exceeds a limit. It does so for an
    // emptyDir of the pod's own, too: that is the control.
    scenario("control-evicted", &[], async |control: &Namespace| {
        scenario("hostile-fill", &[MESH, OPT_IN], async |ns: &Namespace| {
            let main = shell("main", &FILL.replace("$DIRECTORY", LOCK_DIR));
            create(ns, "one", "wrap", "Never", &[main]).await;
            let mut main = shell("main", &FILL.replace("$DIRECTORY", "/own"));
            main["volumeMounts"] = json!([{"name": "own", "mountPath": "/own"}]);
            let mut spec = pod_spec("Never", &[main]);
            spec["volumes"] = json!([{"name": "own", "emptyDir": {"sizeLimit": "1Mi"}}]);
            control.create_object(pod("one", &spec)).await;
            is_evicted_for(control, "own").await;
            is_evicted_for(ns, LOCK_VOLUME).await;
        })
        .await;
    })
    .await;
}
