//! The shim is killed in each state that it can be in, and goes on where it was.

use contract::names::{MODE_ANNOTATION, PROXY_CONTAINER, SHIM_CONTAINER, WAIT_FOR_ANNOTATION};
use e2e::cluster::{MESH, OPT_IN};
use e2e::manifests::{NEEDS_PROXY, annotated, injected, pod, pod_spec, shell, with_memory, with_post_start};
use e2e::{PodView, scenario};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::{as_root, shared_pid_modes, shim_container};

/// Kills the shim a second after a file appears, when it has observed what the file marks. Fails where another file has appeared by
/// then, with which that state ends. The shim does not await it.
fn killer([file, end]: [&str; 2]) -> Value {
    let kill = format!("[ ! -e /memory/{end} ] && kill -9 $(pidof aux-shim)");
    let script = format!("until [ -e /memory/{file} ]; do sleep 0.1; done; sleep 1; {kill}");
    as_root(shell("killer", &script))
}

/// Returns a container that marks its start and its end by files, runs so long, and fails unless it has its proxy at the end.
fn telling(name: &str, seconds: u32) -> Value {
    shell(name, &format!("touch /memory/{name}-started; sleep {seconds}; touch /memory/{name}-ended; {NEEDS_PROXY}"))
}

/// Runs pods in which the shim is killed while the first of two files is there and the second is not, and asserts that it missed
/// nothing.
async fn nothing_is_missed(mode: &str, policy: &str, payload: &[Value], kills: &[[&str; 2]]) {
    let awaited: Vec<&str> = payload.iter().filter_map(|container| container["name"].as_str()).collect();
    let shim = shim_container(mode);
    let ns = &scenario(&format!("kills-{mode}"), &[MESH, OPT_IN]).await;
    for &[name, end] in kills {
        let spec = with_memory(pod_spec(policy, &[&[killer([name, end])], payload].concat()));
        let object = annotated(pod(name, &spec), MODE_ANNOTATION, mode);
        ns.create_object(annotated(object, WAIT_FOR_ANNOTATION, &awaited.join(","))).await;
    }
    for [name, _] in kills {
        let pod = ns.until_ended(name, "Succeeded").await;
        assert!(PodView(&pod).restarts(shim) >= Some(1), "{name}: it was killed");
        for container in &awaited {
            assert_eq!(PodView(&pod).restarts(container), Some(0), "{name}: {container} had its proxy");
        }
        let log = ns.logs(name, shim).await;
        assert_eq!(log.matches("asked istio-proxy to quit").count(), 1, "{name}: {log}");
    }
}

#[tokio::test]
async fn killed_native_shim_misses_nothing() {
    // The kubelet starts the third when the second's hook is done, and nothing meanwhile, the shim neither.
    let payload = [telling("main", 10), with_post_start(telling("slow", 40), "sleep 20"), telling("late", 20)];
    // While main runs and late is unseen; when main has ended; while late runs.
    let kills = [["slow-started", "main-ended"], ["main-ended", "late-started"], ["late-started", "late-ended"]];
    nothing_is_missed("native", "Never", &payload, &kills).await;
}

#[tokio::test]
async fn killed_supervisor_misses_nothing() {
    // Its container goes with it, and comes back under OnFailure.
    let payload = [telling("main", 15), telling("other", 30)];
    let kills = [["other-started", "main-ended"], ["main-ended", "other-ended"]];
    nothing_is_missed("proxy", "OnFailure", &payload, &kills).await;
}

#[tokio::test]
async fn shim_killed_during_the_drain_sees_the_proxy_end() {
    // Istio injects nothing here: the pod brings a stand-in for an older pilot-agent, which drains for 6 s.
    let ns = &scenario("kill-drain", &[OPT_IN]).await;
    let drain = r"printf 'HTTP/1.1 200 OK\r\n\r\n' | nc -l -p 15020 > /dev/null; touch /memory/asked; sleep 6; touch /memory/drained; echo drained";
    let containers = [shell(PROXY_CONTAINER, drain), shell("main", "sleep 1"), killer(["asked", "drained"])];
    let spec = with_memory(pod_spec("Never", &containers));
    let pod = ns.run(injected(annotated(pod("one", &spec), WAIT_FOR_ANNOTATION, "main")), "Succeeded").await;
    assert!(PodView(&pod).restarts(SHIM_CONTAINER) >= Some(1), "it was killed");
    assert!(ns.logs("one", PROXY_CONTAINER).await.contains("drained"));
}

#[tokio::test]
async fn payloads_that_a_frozen_shim_missed_end_the_pod() {
    // The shim does not run from before the first payload's start to after the last one's end.
    let freeze = "kill -STOP $(pidof aux-shim); touch /memory/frozen; until [ -e /memory/go ]; do sleep 0.2; done; kill -CONT $(pidof aux-shim)";
    let freezer = with_post_start(as_root(shell("freezer", freeze)), "until [ -e /memory/frozen ]; do sleep 0.1; done");
    let one = vec![shell("main", "true")];
    let three =
        vec![shell("main", "true"), shell("fails", "exit 3"), shell("slow", &format!("sleep 1; {NEEDS_PROXY}"))];
    let ns = &scenario("frozen", &[MESH, OPT_IN]).await;
    for (payload, phase) in [(one, "Succeeded"), (three, "Failed")] {
        let names: Vec<String> = payload.iter().filter_map(|it| it["name"].as_str().map(str::to_owned)).collect();
        for mode in shared_pid_modes() {
            let name = format!("{mode}-{}", names.len());
            let spec = with_memory(pod_spec("Never", &[std::slice::from_ref(&freezer), &payload[..]].concat()));
            let object = annotated(pod(&name, &spec), MODE_ANNOTATION, mode);
            ns.create_object(annotated(object, WAIT_FOR_ANNOTATION, &names.join(","))).await;
            let has_ended = |pod: &Pod| names.iter().all(|it| PodView(pod).terminated(it).is_some()).then_some(());
            ns.pod_until(&name, "the end of the payload", has_ended).await;
            ns.exec(&name, "freezer", &["touch", "/memory/go"]);
            ns.until_ended(&name, phase).await;
            let log = ns.logs(&name, shim_container(mode)).await;
            assert_eq!(log.matches("awaited containers finished known-by=kubelet").count(), 1, "{name}: {log}");
        }
    }
}
