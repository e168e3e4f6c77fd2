//! What helm-unittest (the tests beside the charts) cannot say: a released chart, and laws over every object.

use std::fs;
use std::path::Path;

use e2e::command::{printed, run_offline};
use e2e::rendered::{KUBERNETES, chart, container, objects};

#[test]
fn released_charts_registry_and_digests_are_overridable() {
    let chart = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/released-chart"));
    printed(&run_offline("rm", &["-rf", "../target/released-chart"]));
    printed(&run_offline("cp", &["-r", "helm/istio-aux", "../target/released-chart"]));
    let released =
        format!("registry: registry.example/r\nwebhook: sha256:{}\nshim: sha256:{}\n", "a".repeat(64), "b".repeat(64));
    fs::write(chart.join("released-images.yaml"), released).expect("the file is written");
    let images = |values: &[&str]| {
        let words = ["template", "istio-aux", "../target/released-chart", KUBERNETES, "--no-hooks"];
        let objects = objects(&printed(&run_offline("helm", &[&words, values].concat())));
        [&container(&objects)["image"], &container(&objects)["env"][0]["value"]].map(|image| {
            image.as_str().expect("it is a string").replace(&"a".repeat(64), "a").replace(&"b".repeat(64), "b")
        })
    };
    assert_eq!(images(&[]), ["registry.example/r/webhook@sha256:a", "registry.example/r/shim@sha256:b"]);
    let mirror = images(&["--set=image.registry=mirror.example"]);
    assert_eq!(mirror, ["mirror.example/webhook@sha256:a", "mirror.example/shim@sha256:b"]);
    let tagged = images(&["--set=image.tag=1.2.3"]);
    assert_eq!(tagged, ["registry.example/r/webhook:1.2.3", "registry.example/r/shim:1.2.3"]);
}

#[test]
fn objects_of_the_namespace_take_another_name() {
    let values = ["--set=fullnameOverride=hook", "--set=tenancy.enabled=true"];
    let more = ["--set=certificate.from=cert-manager", "--set=monitoring.enabled=true"];
    for (name, object) in chart(&values).iter().chain(&chart(&[values, more].concat())) {
        let (kind, name) = name.split_once(' ').expect("a kind and a name");
        let is_namespaced = object["metadata"]["namespace"].is_string();
        assert_eq!(name.starts_with("hook"), is_namespaced, "{kind} {name}");
    }
}
