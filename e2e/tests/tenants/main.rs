//! A tenant with Kubeflow's own parts: the profile controller makes the namespace and its policy, and the `PodDefault` webhook
//! adds the token to a pod that asks for it; a trial is Katib's. Pipelines are a stand-in. Installs the tenancy controller, and leaves it there.

use std::time::{SystemTime, UNIX_EPOCH};

use e2e::cluster::{MESH, OPT_IN, client};
use e2e::manifests::{GREETING, annotated, job, pod, pod_spec, server, shell};
use e2e::tenancy::{
    TENANT, TOKEN, WITH_TOKEN, apply, asks, greets, install, kubectl, label, output_of, reviewer, said, said_by_job,
    stand_in, until_available, until_bound, until_said,
};
use e2e::{Namespace, scenario};
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::api::Api;
use serde_json::{Value, json};

/// Creates a profile, and waits for its namespace.
async fn profile(name: &str) -> Namespace {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() % 100_000_000);
    let name = format!("e2e-{name}-{since}");
    apply(&[json!({
        "apiVersion": "kubeflow.org/v1", "kind": "Profile", "metadata": {"name": name},
        "spec": {"owner": {"kind": "User", "name": "owner@example.com"}},
    })]);
    let ns = Namespace::found(&name).await;
    for (key, value) in [MESH, OPT_IN, TENANT, TOKEN, ("istio-aux.io/mesh", "run-to-completion")] {
        label(&ns, &format!("{key}={value}"));
    }
    ns
}

/// Deletes a profile, and waits until its namespace is gone.
async fn end(ns: Namespace) {
    kubectl(&["delete", "profile", ns.name()]);
    let namespaces: Api<NamespaceObject> = Api::all(client().await);
    ns.until("the profile's namespace to go", async || {
        namespaces.get_opt(ns.name()).await.expect("namespaces are read").is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn profiles_pods_reach_pipelines_and_their_own_services_and_no_others() {
    install();
    scenario("pipelines", &[MESH], async |pipelines: &Namespace| {
        let there = pipelines.name();
        apply(&stand_in(there));
        let (ns, other) = (profile("ours").await, profile("theirs").await);
        let own = ns.name();
        for object in &server()[1..] {
            ns.create_object(object.clone()).await;
        }
        until_available(pipelines, "ml-pipeline");
        until_available(&ns, "web");
        until_bound(&ns).await;

        let runs = format!("stand-in: runs of {own} for system:serviceaccount:{own}:default\n 200");
        assert_eq!(said(&ns, "step", &asks(there, own, WITH_TOKEN)).await, runs);
        by_pod_default(&ns, &asks(there, own, WITH_TOKEN), &runs).await;

        // The profile controller's policy, and a template that keeps Istio's injector away.
        assert_eq!(said_by_job(&ns, "inside", &greets("web")).await, format!("{GREETING}\n 200"));
        let from_elsewhere =
            said_by_job(&other, "outside", &until_said(&greets(&format!("web.{own}")), "*RBAC*403")).await;
        assert!(from_elsewhere.ends_with("RBAC: access denied 403"), "{from_elsewhere}");

        trial_reaches_its_own_profile(&ns).await;

        end(ns).await;
        end(other).await;
        kubectl(&["delete", "clusterrolebinding", &reviewer(there)]);
    })
    .await;
}

/// A pod that asks for the `PodDefault` gets the token from Kubeflow's webhook, and only from it.
async fn by_pod_default(ns: &Namespace, script: &str, expected: &str) {
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

/// A Katib trial whose template keeps Istio's injector away, as Katib's examples do: its training succeeds only where a service
/// of its profile answers it.
async fn trial_reaches_its_own_profile(ns: &Namespace) {
    // Katib appends a redirection for its collector, which is to be that of the whole script.
    let training = "{ code=$(curl -s -o /dev/null -w '%{http_code}' --max-time 20 http://web/); echo answered=$code; \
                    echo score=${trialParameters.rate}; sleep 3; [ $code = 200 ]; }";
    let mut trial = job("trial", &pod_spec("Never", &[shell("training", training)]));
    trial["metadata"] = json!({});
    trial["spec"]["backoffLimit"] = json!(0);
    let experiment = json!({
        "apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "metadata": {"name": "tune"},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": "score"},
            "algorithm": {"algorithmName": "sobol"},
            "parallelTrialCount": 1, "maxTrialCount": 1, "maxFailedTrialCount": 0,
            "parameters": [{"name": "rate", "parameterType": "double", "feasibleSpace": {"min": "0.1", "max": "0.9"}}],
            "trialTemplate": {
                "primaryContainerName": "training",
                "trialParameters": [{"name": "rate", "reference": "rate", "description": "the learning rate"}],
                "trialSpec": annotated(trial, "sidecar.istio.io/inject", "false"),
            },
        },
    });
    ns.create_object(experiment.clone()).await;
    let ended = ns
        .until("the experiment to end", async || {
            let experiment = ns.get(&experiment).await;
            ["Succeeded", "Failed"].into_iter().find(|end| has_condition(&experiment, end))
        })
        .await;
    assert_eq!(ended, "Succeeded", "{}", ns.get(&experiment).await["status"]);
}

/// Whether an object has a condition of this type that is true.
fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}
