//! Properties of every decision, over random pods: fields of others survive, and deciding again changes nothing.

use inject::pod::Pod;
use inject::{Delivery, Settings, decide};
use proptest::prelude::*;
use serde_json::{Value, json};

fn patched(pod: &Value, settings: &Settings) -> Value {
    let text = pod.to_string();
    let decision = decide(&serde_json::from_str::<Pod>(&text).unwrap(), settings);
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &decision.patch).unwrap();
    pod
}

fn settings() -> impl Strategy<Value = Settings> {
    let any = (delivery(), any::<bool>());
    any.prop_map(|(delivery, native_sidecars)| Settings { delivery, native_sidecars, ..Settings::new("shim:1") })
}

fn delivery() -> impl Strategy<Value = Delivery> {
    prop_oneof![Just(Delivery::Copy), Just(Delivery::ImageVolume)]
}

/// Generates any JSON, with keys that a JSON Pointer must escape.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    "[a-z~/\" ]{1,6}"
}

fn strings() -> impl Strategy<Value = Value> {
    let ours = prop_oneof![
        Just(("istio-aux.io/wait-for".to_owned(), "main,metrics-collector".to_owned())),
        prop::sample::select(&["auto", "native", "proxy", "status", "istio", "hold", "off"])
            .prop_map(|mode| ("istio-aux.io/mode".to_owned(), mode.to_owned())),
        Just(("istio-aux.io/status".to_owned(), "stale".to_owned())),
        Just(("istio-aux.io/ended".to_owned(), "main=0".to_owned())),
        Just(("istio-aux.io/shim".to_owned(), "native".to_owned())),
        Just(("katib.kubeflow.org/trial".to_owned(), "trial".to_owned())),
        Just(("workflows.argoproj.io/workflow".to_owned(), "wf".to_owned())),
        Just(("proxy.istio.io/config".to_owned(), "concurrency: 2".to_owned())),
        Just(("proxy.istio.io/config".to_owned(), "[".to_owned())),
        Just(("istio-aux.io/shim-requests".to_owned(), "memory=8Mi,cpu".to_owned())),
        Just(("inject.istio.io/templates".to_owned(), "sidecar,gateway".to_owned())),
        Just(("gateway.networking.k8s.io/gateway-name".to_owned(), "gateway".to_owned())),
        (key(), ".{0,8}"),
    ];
    let map = prop::collection::vec(ours, 0..4)
        .prop_map(|pairs| Value::Object(pairs.into_iter().map(|(key, value)| (key, json!(value))).collect()));
    prop_oneof![Just(Value::Null), map]
}

fn container() -> impl Strategy<Value = Value> {
    let name = prop_oneof![Just("main"), Just("metrics-collector"), Just("istio-proxy"), Just("aux-shim")];
    let restart_policy = prop_oneof![3 => Just(Value::Null), 1 => Just(json!("Always"))];
    let command = prop_oneof![Just(Value::Null), Just(json!([])), Just(json!(["sh", "-c", "true"]))];
    let mount = prop_oneof![Just("data"), Just("istio-data"), Just("istio-aux")]
        .prop_map(|name| json!({"name": name, "mountPath": format!("/{name}"), "subPath": null}));
    let mounts = prop_oneof![Just(Value::Null), prop::collection::vec(mount, 0..3).prop_map(Value::from)];
    let args = prop_oneof![
        Just(Value::Null),
        Just(json!(["-w", "true"])),
        Just(json!(["-x"])),
        Just(json!(["watch", "--await=main"])),
    ];
    let probe = prop_oneof![3 => Just(Value::Null), 1 => Just(json!({"exec": {"command": ["true"]}, "xother": 1}))];
    let resize = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer", "xother": 1}]);
    let resize_policy = prop_oneof![3 => Just(Value::Null), 1 => Just(resize)];
    let hook = json!({"postStart": null, "preStop": {"sleep": {"seconds": 1}}});
    let lifecycle = prop_oneof![Just(Value::Null), Just(json!({})), Just(hook)];
    let image = prop_oneof![3 => Just(Value::Null), 1 => Just(json!("auto"))];
    let fields = (name, restart_policy, command, args, lifecycle, mounts, image, probe, resize_policy);
    let known =
        fields.prop_map(|(name, restart_policy, command, args, lifecycle, mounts, image, probe, resize_policy)| {
            json!({
                "name": name, "restartPolicy": restart_policy, "command": command, "args": args, "lifecycle": lifecycle,
                "volumeMounts": mounts, "image": image, "livenessProbe": probe, "resizePolicy": resize_policy,
            })
        });
    with_extra(known)
}

/// Adds fields to an object that no decision knows.
fn with_extra(known: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let extra = prop::collection::btree_map(key().prop_map(|key| format!("x{key}")), any_json(), 0..4);
    (known, extra).prop_map(|(mut object, extra)| {
        object.as_object_mut().unwrap().extend(extra);
        object
    })
}

fn metadata() -> impl Strategy<Value = Value> {
    let known = (strings(), strings());
    let known = known.prop_map(|(labels, annotations)| json!({"labels": labels, "annotations": annotations}));
    prop_oneof![1 => Just(Value::Null), 9 => with_extra(known)]
}

fn pod() -> impl Strategy<Value = Value> {
    // The API server lets no two have the same name.
    let containers = || {
        prop::collection::vec(container(), 0..4).prop_map(|mut containers| {
            let mut names = Vec::new();
            containers.retain(|container| {
                let is_new = !names.contains(&container["name"]);
                names.push(container["name"].clone());
                is_new
            });
            Value::from(containers)
        })
    };
    let init = prop_oneof![Just(Value::Null), containers()];
    let policy = prop_oneof![Just(json!("Never")), Just(json!("OnFailure")), Just(json!("Always")), Just(Value::Null)];
    let volume = prop_oneof![Just("data"), Just("istio-aux")].prop_map(|name| json!({"name": name, "emptyDir": {}}));
    let volumes = prop_oneof![Just(Value::Null), prop::collection::vec(volume, 0..3).prop_map(Value::from)];
    let share = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from)];
    let runtime_class = prop_oneof![7 => Just(Value::Null), 1 => Just(json!("kata-qemu"))];
    let rendered = prop_oneof![
        Just(Value::Null),
        Just(json!({"containers": ["istio-proxy"]})),
        Just(json!({"containers": ["istio-proxy"]})),
        Just(json!({"containers": null, "initContainers": ["istio-init", "istio-proxy"]})),
        Just(json!("no status")),
    ];
    let spec = (containers(), init, volumes, policy, share, runtime_class).prop_map(
        |(containers, init, volumes, policy, share, runtime_class)| {
            json!({
                "containers": containers, "initContainers": init, "volumes": volumes, "restartPolicy": policy,
                "shareProcessNamespace": share, "runtimeClassName": runtime_class,
            })
        },
    );
    with_extra((metadata(), with_extra(spec), rendered).prop_map(|(mut metadata, spec, rendered)| {
        let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
        if let Some(annotations) = annotations.filter(|_| !rendered.is_null()) {
            annotations.insert("sidecar.istio.io/status".into(), json!(rendered.to_string()));
        }
        json!({"metadata": metadata, "spec": spec})
    }))
}

/// Takes out of a patched pod what istio-aux may write, so that the rest can be compared with the pod before.
fn without_ours(before: &Value, after: &Value) -> Value {
    let mut after = after.clone();
    for (map, keys) in [
        ("labels", &["istio-aux.io/shim"][..]),
        (
            "annotations",
            &[
                "proxy.istio.io/config",
                "istio-aux.io/status",
                "istio-aux.io/ended",
                "sidecar.istio.io/nativeSidecar",
                "workflows.argoproj.io/kill-cmd-istio-proxy",
            ],
        ),
    ] {
        for key in keys {
            restore(&mut after["metadata"][map], &before["metadata"][map], key);
        }
        if after["metadata"][map] == json!({}) {
            after["metadata"][map] = before["metadata"][map].clone();
        }
    }
    if before["metadata"].is_null() {
        after["metadata"] = Value::Null;
    }
    after["spec"]["shareProcessNamespace"] = before["spec"]["shareProcessNamespace"].clone();
    for list in ["initContainers", "volumes"] {
        take_ours_off(&mut after["spec"][list], &before["spec"][list]);
    }
    let containers = after["spec"]["containers"].as_array_mut().unwrap();
    let proxy_was_at = before["spec"]["containers"].as_array().unwrap().iter().position(|c| c["name"] == "istio-proxy");
    if let Some(place) = proxy_was_at.filter(|_| containers[0]["name"] == "istio-proxy") {
        containers[..=place].rotate_left(1);
    }
    for (container, before) in containers.iter_mut().zip(before["spec"]["containers"].as_array().unwrap()) {
        take_ours_off(&mut container["volumeMounts"], &before["volumeMounts"]);
        if container["args"].as_array().is_some_and(|args| args.ends_with(&[json!("-w"), json!("false")])) {
            container["args"] = before["args"].clone();
        }
        if container["lifecycle"]["postStart"] == json!({"exec": {"command": ["pilot-agent", "wait"]}}) {
            container["lifecycle"] = before["lifecycle"].clone();
        }
        if container["command"][0] == "/istio-aux/aux-shim" {
            let words = container["command"].as_array().unwrap();
            let end = words.iter().position(|word| word == "--").unwrap() + 1;
            let theirs = before["command"].as_array().cloned().unwrap_or_default();
            let theirs = if theirs.is_empty() { vec![json!("/usr/local/bin/pilot-agent")] } else { theirs };
            assert_eq!(words[end..], theirs);
            container["command"] = before["command"].clone();
        }
    }
    after
}

/// Takes the appended items off a list, and asserts that they have names of ours.
fn take_ours_off(after: &mut Value, before: &Value) {
    let had = before.as_array().map_or(0, Vec::len);
    let Some(list) = after.as_array_mut() else { return };
    for ours in list.drain(had..) {
        let name = ours["name"].as_str().unwrap();
        assert!(["aux-shim", "aux-shim-install", "istio-aux", "istio-aux-annotations"].contains(&name), "{name}");
    }
    if had == 0 {
        *after = before.clone();
    }
}

fn restore(after: &mut Value, before: &Value, key: &str) {
    if let Some(map) = after.as_object_mut() {
        match before.get(key) {
            Some(value) => map.insert(key.to_owned(), value.clone()),
            None => map.remove(key),
        };
    }
}

#[test]
fn pod_of_a_megabyte_is_kept_whole() {
    let variables: Value = (0..12_000)
        .map(|n| json!({"name": format!("V{n}"), "value": "~/\"\\ \u{1f980} and the like, some 60 characters"}))
        .collect();
    let pod = json!({
        "metadata": {"name": "large", "annotations": {
            "a~b/c": "x".repeat(200_000), "sidecar.istio.io/status": "{\"containers\": [\"istio-proxy\"]}",
        }},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "istio-proxy"}, {"name": "main", "env": variables}]},
    });
    assert!(pod.to_string().len() > 1 << 20);
    let after = patched(&pod, &Settings::new("shim:1"));
    assert_eq!(after["spec"]["initContainers"][0]["name"], "aux-shim");
    assert_eq!(after["spec"]["containers"][1], pod["spec"]["containers"][1]);
    assert_eq!(after["metadata"]["annotations"]["a~b/c"], pod["metadata"]["annotations"]["a~b/c"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    // The second call may reach a replica with another delivery, while that option is changed.
    #[test]
    fn deciding_again_changes_nothing(pod in pod(), settings in settings(), delivery in delivery()) {
        let once = patched(&pod, &settings);
        prop_assert_eq!(&patched(&once, &Settings { delivery, ..settings }), &once);
    }

    #[test]
    fn fields_of_others_survive(pod in pod(), settings in settings()) {
        prop_assert_eq!(without_ours(&pod, &patched(&pod, &settings)), pod);
    }
}
