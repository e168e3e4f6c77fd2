//! What the ways of installing render: the chart and the overlays give the same objects, and a wrong value is refused by its
//! name. Needs helm and kubectl, but changes nothing on the cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

use e2e::command::{printed, run};
use serde_json::Value;

fn chart(values: &[&str]) -> Output {
    let fixed =
        ["template", "istio-aux", "helm/istio-aux", "--namespace=istio-aux", "--no-hooks", "--kube-version=1.34.0"];
    run("helm", &[&fixed, values].concat(), "")
}

/// Objects by kind and name. Helm creates no namespace.
fn objects(manifests: &str) -> BTreeMap<String, Value> {
    let all: Vec<Value> = serde_saphyr::from_str_multiple(manifests).expect("manifests are YAML");
    let all = all.into_iter().filter(|object| !object.is_null() && object["kind"] != "Namespace");
    all.map(|object| (format!("{} {}", object["kind"], object["metadata"]["name"]), object)).collect()
}

/// Writes a file below the folder `target`.
fn write(file: &str, text: &str) {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")).join(file);
    fs::create_dir_all(file.parent().expect("it is in a folder")).expect("the folder is made");
    fs::write(file, text).expect("the file is written");
}

#[test]
fn chart_and_overlays_give_the_same_objects() {
    let with_components = "../target/with-components";
    let overlay = "components: [../../deploy/components/monitoring, ../../deploy/components/network-policy]\nresources: [../../deploy/overlays/self-signed]\n";
    write("with-components/kustomization.yaml", overlay);
    let cases: [(&str, &[&str], usize); 5] = [
        ("overlays/policy", &["--set=profile=policy"], 4),
        (with_components, &["--set=monitoring=true", "--set=networkPolicy=true"], 13),
        ("overlays/self-signed", &[], 10),
        ("overlays/failure-ignore", &["--set=failurePolicy=Ignore"], 10),
        ("overlays/cert-manager", &["--set=certificate.from=cert-manager"], 9),
    ];
    for (overlay, values, count) in cases {
        let by_kustomize = objects(&printed(&run("kubectl", &["kustomize", overlay], "")));
        let by_helm = objects(&printed(&chart(values)));
        assert_eq!(by_kustomize.len(), count, "{overlay}");
        for (name, object) in &by_kustomize {
            assert_eq!(by_helm.get(name), Some(object), "{overlay}: {name}");
        }
        assert_eq!(by_helm.len(), count, "{overlay}");
    }
}

#[test]
fn options_of_the_chart_reach_the_objects() {
    let values = [
        "--set=image.registry=registry.example/x",
        "--set=image.tag=1.2.3",
        "--set=shim.delivery=image-volume",
        "--set=shim.pullPolicy=Always",
        "--set=shim.requests.memory=8Mi",
        "--set=shim.requests.cpu=2m",
        "--set=nativeSidecars=disabled",
        "--set=log.format=json",
        "--set=log.level=debug",
        "--set=certificate.validity=24h",
        "--set=networkPolicy=true",
        "--set=monitoring=true",
        "--set=replicas=3",
        "--set=priorityClassName=system-cluster-critical",
        "--set=image.pullSecrets[0].name=key",
    ];
    let objects = objects(&printed(&chart(&values)));
    let spec = &objects[r#""Deployment" "istio-aux""#]["spec"];
    assert_eq!(spec["replicas"], 3);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(pod["imagePullSecrets"][0]["name"], "key");
    assert_eq!(pod["containers"][0]["image"], "registry.example/x/webhook:1.2.3");
    let arguments = pod["containers"][0]["args"].to_string();
    for argument in [
        "--shim-image=registry.example/x/shim:1.2.3",
        "--delivery=image-volume",
        "--shim-pull-policy=Always",
        "--shim-requests=cpu=2m,memory=8Mi",
        "--native-sidecars=off",
        "--log-format=json",
        "--log-level=debug",
        "--certificate-validity=24h",
    ] {
        assert!(arguments.contains(argument), "no {argument} in {arguments}");
    }
    for kind in ["NetworkPolicy", "PodMonitor", "PrometheusRule"] {
        assert!(objects.contains_key(&format!("\"{kind}\" \"istio-aux\"")), "{kind}: {:?}", objects.keys());
    }
}

#[test]
fn options_of_the_chart_reach_the_policy() {
    let values = [
        "--set=profile=policy",
        "--set=image.registry=registry.example/x",
        "--set=image.tag=1.2.3",
        "--set=shim.delivery=image-volume",
        "--set=shim.pullPolicy=Always",
        "--set=shim.requests.memory=8Mi",
        "--set=shim.limits.memory=32Mi",
        "--api-versions=admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy",
    ];
    let objects = objects(&printed(&chart(&values)));
    let policy = &objects[r#""MutatingAdmissionPolicy" "istio-aux""#];
    assert_eq!(policy["apiVersion"], "admissionregistration.k8s.io/v1beta1");
    let chosen = |name: &str| {
        let variables = policy["spec"]["variables"].as_array().expect("there are variables");
        variables.iter().find(|variable| variable["name"] == name).expect("it is one of them")["expression"].clone()
    };
    let cases = [
        ("image", "'registry.example/x/shim:1.2.3'"),
        ("pullPolicy", "'Always'"),
        ("delivery", "'image-volume'"),
        ("requests", "{'memory': '8Mi'}"),
        ("limits", "{'memory': '32Mi'}"),
    ];
    for (name, expression) in cases {
        assert_eq!(chosen(name), expression, "{name}");
    }
    let refused = chart(&["--set=profile=policy", "--set=failurePolicy=Ignore"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("failurePolicy and nativeSidecars are the webhook's"));
}

#[test]
fn network_policy_passes_the_servers_dry_run() {
    let file = "components/network-policy/network-policy.yaml";
    let dry_run = ["apply", "--server-side", "--dry-run=server", "--namespace=istio-aux", "-f", file];
    assert!(
        printed(&run("kubectl", &dry_run, "")).contains("networkpolicy.networking.k8s.io/istio-aux serverside-applied")
    );
}

#[test]
fn wrong_values_are_refused_by_their_names() {
    let cases = [
        ("failurePolicy=Maybe", "failurePolicy"),
        ("shim.delivery=post", "delivery"),
        ("replicas=0", "replicas"),
        ("certificate.from=heaven", "from"),
        ("certificate.validity=a-year", "validity"),
        ("nativeSidecars=on", "nativeSidecars"),
        ("replica=2", "replica"),
        ("certificate.from=secret", "certificate.caBundle"),
        ("profile=none", "profile"),
    ];
    for (value, name) in cases {
        let output = chart(&["--set", value]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(name), "{value}: {errors}");
    }
}
