//! The arguments of the shim that pods get.

use inject::Mode;
use serde_json::{Value, json};

use super::{CLASSIC_PROXY, decided, json_of, noted, patched, shim_of, with};

/// Adds a native sidecar to the pod, before or after its init containers.
fn with_sidecar(mut pod: Value, comes_first: bool) -> Value {
    let init = pod["spec"]["initContainers"].as_array_mut().unwrap();
    let sidecar = json!({"name": "logs", "image": "logs:1", "restartPolicy": "Always"});
    init.insert(if comes_first { 0 } else { init.len() }, sidecar);
    pod
}

#[test]
fn wait_for_and_status_port_reach_the_shim() {
    let mut pod = noted(CLASSIC_PROXY, "istio-aux.io/wait-for", "metrics");
    pod["metadata"]["annotations"]["status.sidecar.istio.io/port"] = json!("15999");
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "sql"}));
    let patched = patched(&pod);
    let expected = json!([
        "watch",
        "--await=metrics",
        "--restart-policy=OnFailure",
        "--proxy=istio-proxy",
        "--status-port=15999",
        "--annotations=/istio-aux-annotations/annotations",
    ]);
    assert_eq!(shim_of(&patched).unwrap()["args"], expected);
}

/// Returns the arguments of the shim that a pod gets.
fn shim_args(pod: &Value) -> Vec<String> {
    serde_json::from_value(shim_of(&patched(pod)).unwrap()["args"].clone()).unwrap()
}

#[test]
fn only_the_kubelet_judges_containers_with_rules_of_their_own() {
    let rule = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
    let cases = [
        (
            "containers",
            1,
            json!({"restartPolicy": "Never", "restartPolicyRules": rule("Restart")}),
            &["main"][..],
            false,
        ),
        ("containers", 1, json!({"restartPolicy": "Never"}), &["main"], false),
        ("containers", 1, json!({"restartPolicy": "Sometimes"}), &["main"], false),
        ("containers", 1, json!({"restartPolicyRules": rule("RestartAllContainers")}), &["main"], false),
        ("containers", 2, json!({"restartPolicyRules": rule("RestartAllContainers")}), &["main"], false),
        ("initContainers", 0, json!({"restartPolicyRules": rule("RestartAllContainers")}), &["main"], true),
    ];
    for (list, index, fields, names, all_may_restart) in cases {
        let mut pod = noted(CLASSIC_PROXY, "istio-aux.io/wait-for", "main");
        pod["metadata"]["annotations"]["istio-aux.io/mode"] = json!("native");
        pod["spec"][list][index].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let args = shim_args(&pod);
        let found: Vec<&str> = args.iter().filter_map(|arg| arg.strip_prefix("--may-restart=")).collect();
        assert_eq!((&found[..], args.contains(&"--all-may-restart".to_owned())), (names, all_may_restart), "{fields}");
    }
}

#[test]
fn shim_that_is_there_is_left_alone() {
    for comes_first in [true, false] {
        let pod = with_sidecar(patched(&json_of(CLASSIC_PROXY)), comes_first);
        assert_eq!(decided(&pod).mode, Mode::Native);
        assert!(decided(&pod).patch.is_empty(), "{comes_first}");
    }
    // A container of the shim's name without the webhook's arguments.
    let mut other = with_sidecar(json_of(CLASSIC_PROXY), true);
    other["spec"]["initContainers"][0]["name"] = json!("aux-shim");
    assert_eq!(patched(&other)["metadata"]["labels"]["istio-aux.io/shim"], json!("native"));
    assert_eq!(patched(&other)["spec"], other["spec"]);
}

/// `kubectl debug --copy-to` removes labels, and the kubelet's reports are awaited for labelled pods only.
#[test]
fn copy_of_a_pod_with_a_shim_gets_its_label_back() {
    let pod = patched(&json_of(CLASSIC_PROXY));
    let mut copy = pod.clone();
    copy["metadata"].as_object_mut().unwrap().remove("labels");
    assert_eq!(decided(&copy).patch.0.len(), 2, "{:?}", decided(&copy).patch);
    assert_eq!(patched(&copy)["metadata"]["labels"], json!({"istio-aux.io/shim": "native"}));
    assert_eq!(patched(&copy)["spec"], pod["spec"]);
}

#[test]
fn restartable_containers_are_passed_on() {
    let probe = json!({"exec": {"command": ["true"]}});
    let resize = |policy: &str| json!([{"resourceName": "cpu", "restartPolicy": policy}]);
    // Which container, what it has, and whether it is named under OnFailure.
    let cases = [
        (1, json!({"livenessProbe": probe}), true),
        (1, json!({"startupProbe": probe}), true),
        (2, json!({"livenessProbe": probe}), true),
        (1, json!({"readinessProbe": probe}), false),
        (1, json!({"livenessProbe": null, "startupProbe": null, "resizePolicy": null}), false),
        (1, json!({"resizePolicy": resize("RestartContainer")}), true),
        (1, json!({"resizePolicy": resize("NotRequired")}), false),
        (0, json!({"livenessProbe": probe}), false),
    ];
    for (index, fields, is_named) in cases {
        for (policy, own, expected) in [
            ("OnFailure", Value::Null, is_named),
            ("Never", Value::Null, false),
            ("Never", json!("OnFailure"), index != 0),
        ] {
            let mut pod = with(CLASSIC_PROXY, "/spec/restartPolicy", json!(policy));
            let container = pod["spec"]["containers"][index].as_object_mut().unwrap();
            if !own.is_null() {
                container.insert("restartPolicy".to_owned(), own.clone());
            }
            container.extend(fields.as_object().unwrap().clone());
            let name = container["name"].as_str().unwrap().to_owned();
            let mut args = shim_args(&pod);
            args.retain(|arg| arg.starts_with("--may-restart"));
            let named = if expected { vec![format!("--may-restart={name}")] } else { Vec::new() };
            assert_eq!(args, named, "{name} {fields} pod: {policy} own: {own}");
        }
    }
}

#[test]
fn only_loopback_endpoints_reach_the_shim() {
    let urls = "http://127.0.0.1:9091/quitquitquit, https://127.0.0.1:1/x, http://10.0.0.1:80/y";
    let mut pod = noted(CLASSIC_PROXY, "istio-aux.io/quit", urls);
    pod["metadata"]["annotations"]["istio-aux.io/wait-for"] = json!("main");
    let quits: Vec<String> = shim_args(&pod).into_iter().filter(|arg| arg.starts_with("--quit")).collect();
    assert_eq!(quits, ["--quit=http://127.0.0.1:9091/quitquitquit"]);
    let warnings = decided(&pod).warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(
        warnings[0],
        "istio-aux.io/quit: \"https://127.0.0.1:1/x\" is ignored: it must be http://127.0.0.1:PORT/PATH: plain HTTP, on loopback, with its port"
    );
}

#[test]
fn quit_endpoints_after_the_sixteenth_are_ignored() {
    for (count, warnings) in [(16, 0), (17, 1)] {
        let urls: Vec<String> = (1..=count).map(|port| format!("http://127.0.0.1:{port}/quit")).collect();
        let mut pod = noted(CLASSIC_PROXY, "istio-aux.io/quit", &urls.join(","));
        pod["metadata"]["annotations"]["istio-aux.io/wait-for"] = json!("main");
        let expected: Vec<String> = urls[..16].iter().map(|url| format!("--quit={url}")).collect();
        let found: Vec<String> = shim_args(&pod).into_iter().filter(|arg| arg.starts_with("--quit")).collect();
        assert_eq!(found, expected, "{count}");
        let expected = vec!["istio-aux.io/quit: all but the first 16 are ignored"; warnings];
        assert_eq!(decided(&pod).warnings, expected, "{count}");
    }
}

#[test]
fn status_port_annotation_precedes_the_proxys() {
    let mut pod = json_of(CLASSIC_PROXY);
    let env = pod["spec"]["containers"][0]["env"].as_array_mut().unwrap();
    let config = env.iter_mut().find(|variable| variable["name"] == "PROXY_CONFIG").unwrap();
    config["value"] = json!("{\"statusPort\":15777}");
    assert!(shim_args(&pod).contains(&"--status-port=15777".to_owned()));
    pod["metadata"]["annotations"]["status.sidecar.istio.io/port"] = json!("15888");
    assert!(shim_args(&pod).contains(&"--status-port=15888".to_owned()));
}
