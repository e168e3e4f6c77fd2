//! A profile with Kubeflow's own components: the profile controller makes the namespace and its policy, the `PodDefault` webhook adds
//! the token to a pod that asks for it, and a trial is Katib's. Pipelines are a stand-in. Installs the tenancy controller, and leaves
//! it there.

use e2e::clients::{greets, output_of, output_of_job, output_of_script, until_said};
use e2e::cluster::{MESH, OPT_IN};
use e2e::kubectl::{Applied, wait_for_removal, wait_for_rollout};
use e2e::kubeflow::katib::{experiment, trial_job};
use e2e::manifests::{GREETING, annotated, pod, pod_spec, server, shell};
use e2e::namespace::unique_name;
use e2e::tenancy::{TENANT, TOKEN, WITH_TOKEN, asks, install, label, name_accounts, stand_in, until_bound};
use e2e::{Namespace, has_condition, scenario};
use serde_json::json;

/// Creates a profile, and waits for its namespace.
async fn profile(name: &str) -> (Namespace, Applied) {
    let name = unique_name(name);
    let profile = Applied::new(&[json!({
        "apiVersion": "kubeflow.org/v1", "kind": "Profile", "metadata": {"name": name},
        "spec": {"owner": {"kind": "User", "name": "owner@example.com"}},
    })]);
    let ns = Namespace::found(&name).await;
    for (key, value) in [MESH, OPT_IN, TENANT, TOKEN, ("istio-aux.io/mesh", "run-to-completion")] {
        label(&ns, &format!("{key}={value}"));
    }
    name_accounts(&ns, "default");
    (ns, profile)
}

pub(crate) async fn profiles_pods_reach_pipelines_and_own_services() {
    install();
    let pipelines = &scenario("pipelines", &[MESH]).await;
    let there = pipelines.name();
    let _stand_in = stand_in(there);
    let ((ns, ours), (other, theirs)) = (profile("ours").await, profile("theirs").await);
    let own = ns.name();
    ns.create_objects(server().into_iter().skip(1)).await;
    wait_for_rollout(there, "deployment/ml-pipeline");
    wait_for_rollout(own, "deployment/web");
    until_bound(&ns).await;

    let runs = format!("stand-in: runs of {own} for system:serviceaccount:{own}:default\n 200");
    assert_eq!(output_of_script(&ns, "step", &asks(there, own, WITH_TOKEN)).await, runs);
    token_comes_from_the_pod_default(&ns, &asks(there, own, WITH_TOKEN), &runs).await;

    // The profile controller's policy, and a template that opts out of Istio's injection.
    assert_eq!(output_of_job(&ns, "inside", &greets("web")).await, format!("{GREETING}\n 200"));
    let denied = until_said(&greets(&format!("web.{own}")), "*RBAC*403");
    let answer = output_of_job(&other, "outside", &denied).await;
    assert!(answer.ends_with("RBAC: access denied 403"), "{answer}");

    trial_reaches_its_own_profile(&ns).await;

    drop((ours, theirs));
    for gone in [&ns, &other] {
        wait_for_removal(gone.name());
    }
}

/// Asserts that a pod that asks for the `PodDefault` gets the token from Kubeflow's webhook alone.
async fn token_comes_from_the_pod_default(ns: &Namespace, script: &str, expected: &str) {
    let pod_default = json!({
        "apiVersion": "kubeflow.org/v1alpha1", "kind": "PodDefault", "metadata": {"name": "access-ml-pipeline"},
    });
    ns.until("the PodDefault", async || ns.find(&pod_default).await).await;
    let mut notebook = pod("notebook", &pod_spec("Never", &[shell("main", script)]));
    notebook["metadata"]["labels"] = json!({"access-ml-pipeline": "true"});
    assert_eq!(output_of(ns, notebook.clone()).await, expected);
    let notebook = ns.get(&notebook).await;
    let volumes = notebook["spec"]["volumes"].as_array().expect("it has volumes").iter();
    let names: Vec<&str> = volumes.filter_map(|volume| volume["name"].as_str()).collect();
    assert!(names.contains(&"volume-kf-pipeline-token") && !names.contains(&"istio-aux-pipelines-token"), "{names:?}");
}

/// Runs a Katib trial whose template opts out of Istio's injection, as Katib's examples do. Its training succeeds only where a service
/// of its profile answers it.
async fn trial_reaches_its_own_profile(ns: &Namespace) {
    // Katib appends a redirection for its collector, which is to be that of the whole script.
    let training = "{ code=$(curl -s -o /dev/null -w '%{http_code}' --max-time 20 http://web/); echo answered=$code; \
                    echo score=${trialParameters.rate}; sleep 3; [ $code = 200 ]; }";
    let trial = annotated(trial_job("Never", training), "sidecar.istio.io/inject", "false");
    let tune = experiment("tune", 1, 1, &trial);
    ns.create_object(tune.clone()).await;
    let ended = ns.until_condition(&tune, &["Succeeded", "Failed"]).await;
    assert!(has_condition(&ended, "Succeeded"), "{}", ended["status"]);
}
