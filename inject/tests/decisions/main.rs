//! The patches in detail, over pods as the API server sent them. `cases.yaml` has the rules.

mod shim_arguments;

use inject::pod::Pod;
use inject::{Decision, Delivery, Mode, PullPolicy, Settings, ShimUser, decide};
use serde_json::{Value, json};

/// A pod before Istio's injector has seen it.
const BEFORE_ISTIO: &str = include_str!("../pods/before-istio.json");
/// The pod after Istio's injector, with an ordinary istio-proxy.
const CLASSIC_PROXY: &str = include_str!("../pods/classic-proxy.json");
/// The pod after the injector, with istio-proxy as a native sidecar.
const NATIVE_PROXY: &str = include_str!("../pods/native-proxy.json");

fn settings() -> Settings {
    Settings::new("docker.io/istio-aux/shim:0.1.0")
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn decided(pod: &Value) -> Decision {
    decided_by(pod, &settings())
}

fn decided_by(pod: &Value, settings: &Settings) -> Decision {
    let text = pod.to_string();
    decide(&serde_json::from_str::<Pod>(&text).unwrap(), settings)
}

fn patched(pod: &Value) -> Value {
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &decided(pod).patch).unwrap();
    patched
}

/// Returns the container of this name in one of the lists.
fn container<'p>(pod: &'p Value, list: &str, name: &str) -> Option<&'p Value> {
    pod["spec"][list].as_array()?.iter().find(|container| container["name"] == name)
}

fn shim_of(pod: &Value) -> Option<&Value> {
    container(pod, "initContainers", "aux-shim")
}

/// Returns the pod with one field changed.
fn with(pod: &str, path: &str, value: Value) -> Value {
    let mut pod = json_of(pod);
    let (parent, key) = path.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

#[test]
fn hold_annotation_is_added_before_istio() {
    insta::assert_json_snapshot!(decided(&json_of(BEFORE_ISTIO)).patch, @r#"
    [
      {
        "op": "add",
        "path": "/metadata/annotations",
        "value": {}
      },
      {
        "op": "add",
        "path": "/metadata/annotations/proxy.istio.io~1config",
        "value": "{\"holdApplicationUntilProxyStarts\": true}"
      }
    ]
    "#);
}

#[test]
fn reason_tells_a_customised_proxy_from_none() {
    let mut pod = json_of(BEFORE_ISTIO);
    assert_eq!(decided(&pod).reason, "istio-proxy is not in the pod (yet)");
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "istio-proxy"}));
    assert_eq!(decided(&pod).reason, "Istio's injector has not rendered the pod's istio-proxy (yet)");
}

#[test]
fn pod_that_waits_for_its_proxy_keeps_a_warning() {
    let status = |pod: &Value| patched(pod)["metadata"]["annotations"]["istio-aux.io/status"].to_string();
    assert_eq!(status(&json_of(BEFORE_ISTIO)), "null");
    let status = status(&noted(BEFORE_ISTIO, "proxy.istio.io/config", "["));
    assert!(status.contains("cannot add holdApplicationUntilProxyStarts"), "{status}");
}

#[test]
fn shim_is_added_after_istio() {
    insta::assert_json_snapshot!(decided(&json_of(CLASSIC_PROXY)).patch);
}

#[test]
fn mode_proxy_runs_pilot_agent_by_the_shim() {
    let pod = noted(CLASSIC_PROXY, "istio-aux.io/mode", "proxy");
    insta::assert_json_snapshot!(decided(&pod).patch);
}

#[test]
fn image_volume_is_mounted_in_mode_proxy() {
    let settings = Settings { delivery: Delivery::ImageVolume, ..settings() };
    insta::assert_json_snapshot!(decided_by(&json_of(CLASSIC_PROXY), &settings).patch);
}

#[test]
fn image_volume_replaces_the_install_container() {
    let settings = Settings { delivery: Delivery::ImageVolume, pull_policy: PullPolicy::Always, ..settings() };
    for (mode, pod) in [("proxy", json_of(CLASSIC_PROXY)), ("native", training(CLASSIC_PROXY))] {
        let mut pod = pod;
        pod["metadata"]["annotations"]["istio-aux.io/mode"] = json!(mode);
        let decision = decided_by(&pod, &settings);
        assert_eq!(decision.mode.as_str(), mode);
        json_patch::patch(&mut pod, &decision.patch).unwrap();
        let image = json!({"reference": "docker.io/istio-aux/shim:0.1.0", "pullPolicy": "Always"});
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.contains(&json!({"name": "istio-aux", "image": image})), "{mode}: {volumes:?}");
        let mount = json!({"name": "istio-aux", "mountPath": "/istio-aux", "readOnly": true});
        let mounts = pod["spec"]["containers"][1]["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts.contains(&mount), mode != "proxy", "{mode}: {mounts:?}");
        assert!(!pod.to_string().contains("aux-shim-install"), "{mode}");
    }
}

#[test]
fn proxy_without_its_podinfo_gets_the_pods_annotations() {
    let mut pod = noted(CLASSIC_PROXY, "istio-aux.io/mode", "proxy");
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap();
    mounts.retain(|mount| mount["mountPath"] != "/etc/istio/pod");
    let after = patched(&pod);
    let mount = json!({"name": "istio-aux-annotations", "mountPath": "/istio-aux-annotations", "readOnly": true});
    let proxy = &after["spec"]["containers"][0];
    assert!(proxy["volumeMounts"].as_array().unwrap().contains(&mount), "{proxy}");
    let argument = json!("--annotations=/istio-aux-annotations/annotations");
    assert!(proxy["command"].as_array().unwrap().contains(&argument), "{proxy}");
    let volumes = after["spec"]["volumes"].as_array().unwrap();
    assert!(volumes.iter().any(|volume| volume["name"] == "istio-aux-annotations"), "{volumes:?}");
}

#[test]
fn pods_with_the_image_get_its_pull_secrets() {
    let settings = Settings { pull_secrets: vec!["a".to_owned(), "b".to_owned()], ..settings() };
    let secrets = |pod: &Value| {
        let (mut pod, decision) = (pod.clone(), decided_by(pod, &settings));
        json_patch::patch(&mut pod, &decision.patch).unwrap();
        pod["spec"]["imagePullSecrets"].take()
    };
    assert_eq!(secrets(&json_of(BEFORE_ISTIO)), Value::Null);
    assert_eq!(
        secrets(&with(CLASSIC_PROXY, "/spec/imagePullSecrets", Value::Null)),
        json!([{"name": "a"}, {"name": "b"}])
    );
    let present = with(CLASSIC_PROXY, "/spec/imagePullSecrets", json!([{"name": "b"}]));
    assert_eq!(secrets(&present), json!([{"name": "b"}, {"name": "a"}]));
}

#[test]
fn shim_runs_as_the_user_that_is_set() {
    let (number, none) = (|id: i64| json!(id), Value::Null);
    for (proxys_user, user, expected) in [
        (1005, ShimUser::Uid(7), [number(7), number(7)]),
        (1005, ShimUser::Proxy, [number(1005), none.clone()]),
        // The kubelet starts no container of user 0 with `runAsNonRoot`.
        (0, ShimUser::Proxy, [none.clone(), none.clone()]),
        (1005, ShimUser::Unset, [none.clone(), none]),
    ] {
        let mut pod = json_of(CLASSIC_PROXY);
        pod["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": proxys_user, "runAsGroup": 1006});
        let decision = decided_by(&pod, &Settings { user, ..settings() });
        json_patch::patch(&mut pod, &decision.patch).unwrap();
        let context = &shim_of(&pod).unwrap()["securityContext"];
        assert_eq!([&context["runAsUser"], &context["runAsGroup"]], expected.each_ref(), "{user:?}");
    }
}

#[test]
fn mode_status_shares_no_pid_namespace() {
    let pod = noted(CLASSIC_PROXY, "istio-aux.io/mode", "status");
    insta::assert_json_snapshot!(decided(&pod).patch);
    let old = Settings { native_sidecars: false, ..settings() };
    let mut by_parent = pod;
    let decision = decided_by(&by_parent, &old);
    json_patch::patch(&mut by_parent, &decision.patch).unwrap();
    assert_eq!((decision.mode, &by_parent["spec"]["shareProcessNamespace"]), (Mode::Status, &Value::Null));
    let command = by_parent["spec"]["containers"][0]["command"].as_array().unwrap();
    assert!(command.contains(&json!("supervise")) && command.contains(&json!("--report-only")), "{command:?}");
}

#[test]
fn report_of_another_pod_is_removed() {
    for before in [BEFORE_ISTIO, CLASSIC_PROXY] {
        let after = patched(&noted(before, "istio-aux.io/ended", "main=0"));
        assert_eq!(after["metadata"]["annotations"].get("istio-aux.io/ended"), None);
    }
}

#[test]
fn rendered_again_proxy_is_supervised_again() {
    let rendered = json_of(CLASSIC_PROXY)["spec"]["containers"][0].clone();
    let before = patched(&noted(CLASSIC_PROXY, "istio-aux.io/mode", "proxy"));
    let mut pod = before.clone();
    pod["spec"]["containers"][0] = rendered;
    assert_ne!(pod, before);
    assert_eq!(patched(&pod), before);
}

#[test]
fn supervised_proxy_is_first_and_keeps_its_command() {
    let mut pod = noted(CLASSIC_PROXY, "istio-aux.io/mode", "proxy");
    pod["spec"]["containers"][0]["command"] = json!(["/bin/agent", "--flag"]);
    pod["spec"]["containers"].as_array_mut().unwrap().rotate_left(1);
    let after = patched(&pod);
    let names: Vec<&Value> = after["spec"]["containers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["istio-proxy", "main", "metrics"]);
    let command = after["spec"]["containers"][0]["command"].as_array().unwrap();
    assert_eq!(command[..2], [json!("/istio-aux/aux-shim"), json!("supervise")]);
    assert_eq!(command[command.len() - 3..], [json!("--"), json!("/bin/agent"), json!("--flag")]);
}

/// Returns a trial of Katib, with a collector of these arguments.
fn trial(pod: &str, collector: &str, args: &[&str]) -> Value {
    let mut pod = with(pod, "/metadata/labels", json!({"katib.kubeflow.org/trial": "trial-1"}));
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": collector, "args": args}));
    pod
}

#[test]
fn katib_collector_does_not_wait_for_the_proxy() {
    let reports = ["-t", "trial-1", "-s-db", "katib-db-manager:6789"];
    let cases = [
        ("metrics-logger-and-collector", &reports[..], true),
        ("collector", &reports, true),
        // A collector of the user's own may have Katib's name for it.
        ("metrics-collector", &["-t", "trial-1"], false),
        ("metrics-collector", &[], false),
        ("collector", &["-s-db", "db", "-w", "true"], false),
        ("collector", &["-s-db", "db", "-w=true"], false),
        ("collector", &["-s-db", "db", "--wait_all_processes=true"], false),
    ];
    for (name, args, is_disabled) in cases {
        // The argument is added beside a classic or a native proxy, and not to a pod without a proxy.
        for (pod, expected) in [(CLASSIC_PROXY, is_disabled), (NATIVE_PROXY, is_disabled), (BEFORE_ISTIO, false)] {
            let after = patched(&trial(pod, name, args));
            let collector = container(&after, "containers", name).unwrap();
            let more: &[&str] = if expected { &["-w", "false"] } else { &[] };
            assert_eq!(collector["args"], json!([args, more].concat()), "{name} {args:?}");
        }
        let mut other = trial(CLASSIC_PROXY, name, args);
        other["metadata"]["labels"] = json!({});
        assert_eq!(container(&patched(&other), "containers", name).unwrap()["args"], json!(args), "no trial");
    }
}

/// The arguments of a training that Katib's collector watches.
const MARKED: [&str; 1] = ["python train.py 1>/m 2>&1 && echo completed > /var/log/katib/$$$$.pid"];

/// Returns a trial of Katib whose training is to start after its collector.
fn training(pod: &str) -> Value {
    let mut pod = trial(pod, "collector", &["-s-db", "katib-db-manager:6789", "-w", "false"]);
    pod["spec"]["shareProcessNamespace"] = json!(true);
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    let main = containers.iter_mut().find(|container| container["name"] == "main").unwrap();
    main["command"] = json!(["sh", "-c"]);
    main["args"] = json!(MARKED);
    pod
}

#[test]
fn katib_training_starts_after_its_collector() {
    for (before, mode) in [(CLASSIC_PROXY, "native"), (CLASSIC_PROXY, "proxy"), (NATIVE_PROXY, "off")] {
        let mut pod = training(before);
        pod["metadata"]["annotations"]["istio-aux.io/mode"] = json!(if mode == "off" { "auto" } else { mode });
        let after = patched(&pod);
        let training = container(&after, "containers", "main").unwrap();
        let command = ["/istio-aux/aux-shim", "start-after", "--argument=-s-db", "--", "sh", "-c"];
        assert_eq!((&training["command"], &training["args"]), (&json!(command), &json!(MARKED)), "{mode}");
        let mount = json!({"name": "istio-aux", "mountPath": "/istio-aux", "readOnly": true});
        assert!(training["volumeMounts"].as_array().unwrap().contains(&mount), "{mode}");
        let installer = container(&after, "initContainers", "aux-shim-install").unwrap();
        assert_eq!(installer["volumeMounts"][0]["name"], "istio-aux", "{mode}");
        let fields = [
            ("shareProcessNamespace", json!(false)),
            ("restartPolicy", json!("Always")),
            ("runtimeClassName", json!("kata")),
        ];
        for (field, value) in fields {
            let mut other = pod.clone();
            other["spec"][field] = value;
            assert!(!patched(&other).to_string().contains("start-after"), "{mode} {field}");
        }
        // A collector that does not report to Katib's database.
        let containers = pod["spec"]["containers"].as_array_mut().unwrap();
        containers.last_mut().unwrap()["args"] = json!(["-t", "trial-1"]);
        assert!(!patched(&pod).to_string().contains("start-after"), "{mode}");
    }
}

#[test]
fn argo_step_keeps_its_proxy() {
    let kill = "workflows.argoproj.io/kill-cmd-istio-proxy";
    let step = with(CLASSIC_PROXY, "/metadata/labels", json!({"workflows.argoproj.io/workflow": "wf"}));
    let after = patched(&step);
    assert_eq!(after["metadata"]["annotations"][kill], r#"["pilot-agent","version"]"#);
    assert_eq!(after["metadata"]["labels"]["istio-aux.io/shim"], "status");
    assert_eq!(after["spec"]["shareProcessNamespace"], Value::Null);
    let mut step = step;
    step["metadata"]["annotations"][kill] = json!("[]");
    assert_eq!(patched(&step)["metadata"]["annotations"][kill], "[]", "the user's word stands");
}

/// Returns a pod as `istioctl kube-inject` makes it: the proxy is there, without the hold.
fn kube_injected() -> Value {
    let mut pod = json_of(CLASSIC_PROXY);
    pod["metadata"]["annotations"].as_object_mut().unwrap().remove("proxy.istio.io/config");
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    containers[0].as_object_mut().unwrap().remove("lifecycle");
    containers.rotate_left(1);
    pod
}

#[test]
fn proxy_rendered_without_hold_is_made_to_hold() {
    let after = patched(&kube_injected());
    let first = &after["spec"]["containers"][0];
    assert_eq!(first["name"], "istio-proxy");
    assert_eq!(first["lifecycle"], json!({"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}));
    assert!(shim_of(&after).is_some());
    let injected = json_of(CLASSIC_PROXY);
    assert_eq!(after["spec"]["containers"][0]["lifecycle"], injected["spec"]["containers"][0]["lifecycle"]);
    // A proxy with a postStart hook of its own, or with a command that may not be pilot-agent, is not changed.
    for (field, value) in
        [("lifecycle", json!({"postStart": {"exec": {"command": ["true"]}}})), ("command", json!(["agent"]))]
    {
        let mut pod = kube_injected();
        pod["spec"]["containers"][2][field] = value.clone();
        let proxy = patched(&pod)["spec"]["containers"][2].clone();
        assert_eq!((&proxy["name"], &proxy[field]), (&json!("istio-proxy"), &value));
    }
}

#[test]
fn native_proxy_gets_a_status_only() {
    insta::assert_json_snapshot!(decided(&json_of(NATIVE_PROXY)).patch);
}

/// Returns the pod with one more annotation.
fn noted(pod: &str, key: &str, value: &str) -> Value {
    let mut pod = json_of(pod);
    pod["metadata"]["annotations"][key] = json!(value);
    pod
}

#[test]
fn pod_of_more_than_500_containers_is_unchanged() {
    for (count, mode) in [(500, Mode::Native), (501, Mode::Off)] {
        let mut pod = json_of(CLASSIC_PROXY);
        let present = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array().unwrap().len());
        let more = (present.iter().sum()..count).map(|n| json!({"name": format!("c{n}")}));
        pod["spec"]["containers"].as_array_mut().unwrap().extend(more);
        let decision = decided(&pod);
        assert_eq!(decision.mode, mode, "{count}: {}", decision.reason);
        assert_eq!(decision.reason == "it has more than 500 containers", mode == Mode::Off, "{count}");
    }
}

#[test]
fn hold_is_not_added_if_set_or_without_status_port() {
    for annotations in [
        json!({"status.sidecar.istio.io/port": "0"}),
        json!({"proxy.istio.io/config": "holdApplicationUntilProxyStarts: false"}),
    ] {
        let pod = with(BEFORE_ISTIO, "/metadata/annotations", annotations.clone());
        assert!(decided(&pod).patch.is_empty(), "{annotations}");
    }
}

#[test]
fn manifests_name_this_version_of_the_images() {
    let manifest = include_str!("../../../deploy/overlays/self-signed/istio-aux.yaml");
    for image in ["webhook", "shim"] {
        let tagged = format!("registry.invalid/istio-aux/{image}:{}", env!("CARGO_PKG_VERSION"));
        assert!(manifest.contains(&tagged), "{tagged}");
    }
}
