//! Adds to the pod templates of an object what the webhook would add.

use anyhow::{Context, Result};
use contract::names::ISTIO_STATUS_ANNOTATION;
use inject::{Decision, Mode, Settings};
use serde_json::{Value, json};

use crate::pods::templates::{self, Template};
use crate::pods::{decide_now, is_proxy, is_rendered};

/// Mutates objects, and collects the warnings of their decisions.
pub(super) struct ManifestInjector<'a> {
    pub(super) settings: &'a Settings,
    pub(super) assume_proxy: bool,
    /// Has one line each, with the object.
    pub(super) warnings: Vec<String>,
}

impl ManifestInjector<'_> {
    /// Mutates every pod template of an object.
    pub(super) fn inject(&mut self, object: &mut Value) -> Result<()> {
        let object_ref = object_ref(object);
        for template in templates::of(object) {
            let mut pod = template.pod(object);
            let warnings = self.inject_pod(&mut pod, &template).with_context(|| object_ref.clone())?;
            template.put_back(object, pod);
            for warning in warnings {
                let line = format!("{object_ref}: {warning}");
                // Both decisions may have the same warning.
                if !self.warnings.contains(&line) {
                    self.warnings.push(line);
                }
            }
        }
        Ok(())
    }

    /// Mutates a template's pod, and returns the warnings.
    fn inject_pod(&self, pod: &mut Value, template: &Template) -> Result<Vec<String>> {
        // The webhook's call before Istio's injector.
        let decision = decide_now(pod, self.settings)?;
        patch(pod, &decision)?;
        let mut warnings = decision.warnings;
        if self.assume_proxy && !template.has_containers {
            warnings.push("its controller makes the containers: the webhook adds the shim, in the cluster".to_owned());
        } else if self.assume_proxy && !is_rendered(pod) {
            // Where istioctl kube-inject has added the proxy, the first decision has seen it.
            warnings.extend(self.add_shim(pod)?);
        }
        Ok(warnings)
    }

    /// Applies the webhook's call after Istio's injector, with a stand-in for the proxy, which is taken out again. Returns the
    /// warnings.
    fn add_shim(&self, pod: &mut Value) -> Result<Vec<String>> {
        let mut with_proxy = pod.clone();
        let Some(containers) = with_proxy["spec"]["containers"].as_array_mut() else { return Ok(Vec::new()) };
        let customised = containers.iter_mut().find(|container| is_proxy(container));
        let customised = customised.map(|container| std::mem::replace(container, proxy()));
        if customised.is_none() {
            containers.push(proxy());
        }
        json_patch::merge(&mut with_proxy, &injection_status(&json!(PROXY_STATUS)));
        let mut decision = decide_now(&with_proxy, self.settings)?;
        let is_parent = decision.mode == Mode::Status && !self.settings.native_sidecars;
        if is_parent || decision.mode == Mode::Proxy {
            let mode = decision.mode.as_str();
            let warning = format!("mode {mode} changes istio-proxy itself: the webhook does it, in the cluster");
            decision.warnings.push(warning);
            return Ok(decision.warnings);
        }
        patch(&mut with_proxy, &decision)?;
        json_patch::merge(&mut with_proxy, &injection_status(&Value::Null));
        if let Some(containers) = with_proxy["spec"]["containers"].as_array_mut() {
            match (customised, containers.iter_mut().find(|container| is_proxy(container))) {
                (Some(customised), Some(stand_in)) => *stand_in = customised,
                _ => containers.retain(|container| !is_proxy(container)),
            }
        }
        *pod = with_proxy;
        Ok(decision.warnings)
    }
}

/// Returns kind and name, for messages.
fn object_ref(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or("?");
    format!("{}/{name}", object["kind"].as_str().unwrap_or("?"))
}

fn patch(pod: &mut Value, decision: &Decision) -> Result<()> {
    json_patch::patch(pod, &decision.patch).context("a patch does not fit, which is a bug of istio-aux")
}

/// Is the status that Istio's injector writes with the stand-in.
const PROXY_STATUS: &str = r#"{"containers":["istio-proxy"]}"#;

/// Returns a stand-in for the container that Istio's injector adds. A Guaranteed pod stays Guaranteed with it.
fn proxy() -> Value {
    let resources = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    json!({"name": "istio-proxy", "lifecycle": {"postStart": {}}, "resources": resources})
}

/// Returns a merge patch that sets the injector's status.
fn injection_status(status: &Value) -> Value {
    json!({"metadata": {"annotations": {ISTIO_STATUS_ANNOTATION: status}}})
}
