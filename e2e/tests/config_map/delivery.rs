//! Pods start by the `ConfigMap` and complete, whenever they are created.

use contract::names::SHIM_LABEL;
use e2e::cluster::{MESH, OPT_IN};
use e2e::config_map::{delivery_of, mounted, until_delivered};
use e2e::manifests::{job, pod, pod_spec, shell};
use e2e::tenancy::{kill_leader, leader, until_event};
use e2e::{Namespace, PodView, is_complete, scenario};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{opt_in, switched_on};

/// Runs a Job to its end, and returns its pod.
async fn pod_of_complete_job(ns: &Namespace) -> Value {
    ns.create_object(job("hello", &pod_spec("Never", &[shell("main", "echo hello")]))).await;
    ns.until("the Job's end", async || is_complete(&ns.job("hello").await).then_some(())).await;
    let name = ns.pod_of_job("hello").await;
    serde_json::to_value(ns.pod(&name).await).expect("a pod is JSON")
}

fn mode(pod: &Value) -> &Value {
    &pod["metadata"]["labels"][SHIM_LABEL]
}

#[tokio::test]
async fn jobs_mount_the_shim_where_their_namespace_has_it_and_complete_where_it_has_not() {
    let (_guard, _delivery) = switched_on().await;
    scenario("mounts", &[MESH, OPT_IN], async |ns: &Namespace| {
        let name = until_delivered(ns).await;
        let said = until_event(ns, "Delivered").await;
        assert!(said.contains(&format!("created ConfigMap {name}, set label istio-aux.io/shim-delivery=")), "{said}");
        let pod = pod_of_complete_job(ns).await;
        assert_eq!(mounted(&pod), Some(name.as_str()));
        assert_eq!(mode(&pod), "proxy");
        let init = pod["spec"]["initContainers"].as_array().expect("Istio's own");
        assert!(!init.iter().any(|one| one["name"].as_str().is_some_and(|name| name.starts_with("aux-"))), "{init:?}");
        let binary = ns.get(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})).await;
        assert_eq!(binary["immutable"], true);
    })
    .await;
    let copy = ("istio-aux.io/shim-delivery", "copy");
    scenario("copies", &[MESH, OPT_IN, copy], async |ns: &Namespace| {
        let pod = pod_of_complete_job(ns).await;
        assert_eq!((mounted(&pod), mode(&pod)), (None, &json!("native")));
        assert_eq!(delivery_of(ns).as_deref(), Some("copy"), "an administrator's choice stands");
    })
    .await;
}

#[tokio::test]
async fn pods_that_come_while_their_namespace_opts_in_all_complete() {
    const COUNT: usize = 16;
    let (_guard, _delivery) = switched_on().await;
    scenario("at-once", &[MESH], async |ns: &Namespace| {
        opt_in(ns);
        for n in 0..COUNT {
            ns.create_object(pod(&format!("pod-{n}"), &pod_spec("Never", &[shell("main", "true")]))).await;
        }
        ns.until("all ends", async || (ns.finished_pods().await.len() == COUNT).then_some(())).await;
        let mut by_mode = std::collections::BTreeMap::<String, usize>::new();
        for pod in ns.finished_pods().await {
            assert_eq!(PodView(&pod).phase(), "Succeeded", "{}", PodView(&pod).in_a_line());
            let pod = (pod.name_any(), serde_json::to_value(pod).expect("a pod is JSON"));
            let mode = mode(&pod.1).as_str().unwrap_or_default().to_owned();
            assert_eq!(mounted(&pod.1).is_some(), mode == "proxy", "{}", pod.0);
            *by_mode.entry(mode).or_default() += 1;
        }
        println!("pods by mode: {by_mode:?}");
        let name = until_delivered(ns).await;
        assert_eq!(mounted(&pod_of_complete_job(ns).await), Some(name.as_str()));
    })
    .await;
}

#[tokio::test]
async fn namespaces_have_the_shim_in_the_end_though_the_leader_is_killed_as_they_opt_in() {
    let (_guard, _delivery) = switched_on().await;
    for n in 0..3 {
        scenario(&format!("killed-{n}"), &[MESH], async |ns: &Namespace| {
            opt_in(ns);
            let killed = kill_leader(ns).await;
            let name = until_delivered(ns).await;
            assert_eq!(mounted(&pod_of_complete_job(ns).await), Some(name.as_str()));
            ns.until("another leader", async || leader().await.filter(|next| *next != killed)).await;
        })
        .await;
    }
}
