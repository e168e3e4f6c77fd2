//! The table of cases, through both calls of the webhook with Istio's injector between them.

use inject::pod::Pod;
use inject::{Decision, Delivery, Hold, Settings, decide};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Table {
    pod: Value,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    rule: String,
    cases: Vec<Case>,
}

/// The fields are described in the table.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Case {
    #[serde(rename = "case")]
    name: String,
    pod: Value,
    mode: String,
    #[serde(default = "yes")]
    hold: bool,
    #[serde(default = "yes")]
    status: bool,
    wait_for: Option<Vec<String>>,
    reason: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    settings: CaseSettings,
    /// Read by the test of the policy profile.
    #[serde(rename = "policy")]
    _policy: Option<Value>,
    /// The test of the policy profile has to leave it out.
    #[serde(default, rename = "offline")]
    _offline: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct CaseSettings {
    delivery: Option<String>,
    native_sidecars: Option<bool>,
    default_mode: Option<String>,
    hold: Option<String>,
    #[serde(default)]
    mesh_lifecycle: bool,
}

fn yes() -> bool {
    true
}

impl Case {
    fn settings(&self) -> Settings {
        let delivery = self.settings.delivery.as_deref().unwrap_or("copy");
        let delivery = [Delivery::Copy, Delivery::ImageVolume].into_iter().find(|it| it.as_str() == delivery);
        let delivery = delivery.unwrap_or_else(|| panic!("{}: unknown delivery", self.name));
        let hold = self.settings.hold.as_deref().unwrap_or("all");
        let hold = [Hold::All, Hold::Completing, Hold::Never].into_iter().find(|it| it.as_str() == hold);
        let hold = hold.unwrap_or_else(|| panic!("{}: unknown hold", self.name));
        let native_sidecars = self.settings.native_sidecars.unwrap_or(true);
        let prefers_status = self.settings.default_mode.as_deref() == Some("status");
        Settings { delivery, hold, native_sidecars, prefers_status, ..Settings::new("shim:1") }
    }
}

fn decided(pod: &mut Value, settings: &Settings) -> Decision {
    let text = pod.to_string();
    let decision = decide(&serde_json::from_str::<Pod>(&text).unwrap(), settings);
    json_patch::patch(pod, &decision.patch).unwrap();
    decision
}

/// Does what Istio's injector does, as far as decisions can see it.
fn istio_injects(pod: &mut Value, mesh_lifecycle: bool) {
    let annotation =
        |pod: &Value, key: &str| pod["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
    let inject = pod["metadata"]["labels"]["sidecar.istio.io/inject"].as_str().map(str::to_owned);
    let inject = inject.unwrap_or_else(|| annotation(pod, "sidecar.istio.io/inject"));
    if inject == "false" || pod["spec"]["hostNetwork"] == true {
        return;
    }
    let config: Value = serde_saphyr::from_str(&annotation(pod, "proxy.istio.io/config")).unwrap_or_default();
    let config = if config.is_object() { config } else { json!({}) };
    let mut proxy = json!({
        "name": "istio-proxy", "image": "proxyv2:1", "securityContext": {"runAsUser": 1337},
        "volumeMounts": [{"name": "istio-data", "mountPath": "/var/lib/istio/data"}],
        "env": [{"name": "PROXY_CONFIG", "value": config.to_string()}],
    });
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    let customised = containers.iter().position(|container| container["name"] == "istio-proxy");
    let customised = customised.map(|index| containers.remove(index)).unwrap_or_default();
    if !customised["resources"].is_null() {
        proxy["resources"] = customised["resources"].clone();
    }
    let is_native = annotation(pod, "sidecar.istio.io/nativeSidecar") == "true";
    if mesh_lifecycle {
        proxy["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 1}}});
    } else if config["holdApplicationUntilProxyStarts"] == true && !is_native {
        proxy["lifecycle"] = json!({"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}});
    }
    if is_native {
        proxy["restartPolicy"] = json!("Always");
        let mut init = pod["spec"]["initContainers"].as_array().cloned().unwrap_or_default();
        init.insert(0, proxy);
        pod["spec"]["initContainers"] = init.into();
    } else {
        pod["spec"]["containers"].as_array_mut().unwrap().insert(0, proxy);
    }
    let (containers, init) =
        if is_native { (json!(null), json!(["istio-proxy"])) } else { (json!(["istio-proxy"]), json!(null)) };
    let status = json!({"containers": containers, "initContainers": init}).to_string();
    if pod["metadata"]["annotations"].is_null() {
        pod["metadata"]["annotations"] = json!({});
    }
    pod["metadata"]["annotations"]["sidecar.istio.io/status"] = json!(status);
}

/// Compares a case with what is found.
fn check(case: &Case, base: &Value) -> Result<(), String> {
    let settings = case.settings();
    let mut pod = base.clone();
    json_patch::merge(&mut pod, &case.pod);
    let before = pod.clone();
    decided(&mut pod, &settings);
    istio_injects(&mut pod, case.settings.mesh_lifecycle);
    let decision = decided(&mut pod, &settings);
    let differs = |what: &str, expected: &Value, found: &Value| {
        if expected == found { Ok(()) } else { Err(format!("{what}: expected {expected}, found {found}")) }
    };
    differs("mode", &json!(case.mode), &json!(decision.mode.as_str()))?;
    if let Some(reason) = &case.reason {
        differs("reason", &json!(reason), &json!(decision.reason))?;
    }
    let is_expected = |(warning, expected): (&String, &String)| warning.starts_with(expected.as_str());
    if decision.warnings.len() != case.warnings.len() || !decision.warnings.iter().zip(&case.warnings).all(is_expected)
    {
        return Err(format!("warnings: expected {:?}, found {:?}", case.warnings, decision.warnings));
    }
    for list in ["volumes", "initContainers", "containers"] {
        let mut names: Vec<_> =
            pod["spec"][list].as_array().into_iter().flatten().map(|it| it["name"].as_str()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        differs("names", &json!(names.len()), &json!(count))?;
    }
    let text = pod.to_string();
    let proxy = ["containers", "initContainers"].into_iter().filter_map(|list| pod["spec"][list].as_array()).flatten();
    let proxy = proxy.into_iter().find(|container| container["name"] == "istio-proxy").cloned().unwrap_or_default();
    let is_held = !proxy["lifecycle"]["postStart"].is_null() || proxy["restartPolicy"] == "Always";
    differs("hold", &json!(case.hold), &json!(is_held))?;
    differs(
        "has a shim",
        &json!(decision.mode.has_shim()),
        &json!(text.contains("\"aux-shim\"") || text.contains("supervise")),
    )?;
    let status = pod["metadata"]["annotations"]["istio-aux.io/status"].as_str().unwrap_or("null");
    let status: Value = serde_json::from_str(status).unwrap();
    let is_due = decision.mode.has_shim() || !decision.warnings.is_empty();
    if is_due && case.status {
        differs("status' mode", &json!(case.mode), &status["mode"])?;
        differs("status' reason", &json!(decision.reason), &status["reason"])?;
        let warnings = if decision.warnings.is_empty() { Value::Null } else { json!(decision.warnings) };
        differs("status' warnings", &warnings, &status["warnings"])?;
    }
    if decision.mode.has_shim() {
        let expected = case.wait_for.clone().unwrap_or_else(|| vec!["main".to_owned(), "metrics".to_owned()]);
        differs("wait-for", &json!(expected), &status["wait-for"])?;
        differs("label", &json!(case.mode), &pod["metadata"]["labels"]["istio-aux.io/shim"])?;
    }
    if case.mode == "off" && !case.hold && (!case.status || case.warnings.is_empty()) {
        let mut injected = before;
        istio_injects(&mut injected, false);
        differs("the pod", &injected, &pod)?;
    }
    let again = decided(&mut pod, &settings);
    if again.patch.is_empty() { Ok(()) } else { Err(format!("deciding again changes {:?}", again.patch)) }
}

#[test]
fn each_case_matches_the_table() {
    let table: Table = serde_saphyr::from_str(include_str!("cases.yaml")).unwrap();
    let all = table.rules.iter().flat_map(|rule| rule.cases.iter().map(move |case| (rule, case)));
    let wrong: Vec<String> = all
        .filter_map(|(rule, case)| {
            let error = check(case, &table.pod).err()?;
            Some(format!("{}\n  {}: {error}", rule.rule, case.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}
