//! Adds to the pod templates of an object what the webhook would add.

use anyhow::{Context, Result};
use contract::names::ISTIO_STATUS_ANNOTATION;
use inject::{Decision, Mode, Settings, decide, pod::Pod};
use serde_json::{Value, json};

use super::object_ref;
use crate::pods::templates::{self, Template};
use crate::pods::{is_proxy, is_rendered};

/// Mutates objects, and collects the warnings of their decisions.
pub(super) struct ManifestInjector<'a> {
    settings: &'a Settings,
    assume_proxy: bool,
    warnings: Vec<String>,
}

impl<'a> ManifestInjector<'a> {
    pub(super) fn new(settings: &'a Settings, assume_proxy: bool) -> Self {
        Self { settings, assume_proxy, warnings: Vec::new() }
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    /// Mutates every pod template of an object.
    pub(super) fn inject(&mut self, object: &mut Value) -> Result<()> {
        let object_ref = object_ref(object);
        for template in templates::of(object) {
            self.template(object, &template, &object_ref)?;
        }
        Ok(())
    }

    fn template(&mut self, object: &mut Value, template: &Template, object_ref: &str) -> Result<()> {
        let mut pod = template.pod(object);
        self.apply(&mut pod, object_ref)?;
        if self.assume_proxy {
            if template.has_containers() {
                self.apply_with_proxy(&mut pod, object_ref)?;
            } else {
                self.warn(object_ref, "its controller makes the containers: the webhook adds the shim, in the cluster");
            }
        }
        template.put_back(object, pod);
        Ok(())
    }

    /// Applies the webhook's call before Istio's injector.
    fn apply(&mut self, pod: &mut Value, object_ref: &str) -> Result<()> {
        let decision = self.decide(pod, object_ref)?;
        patch(pod, &decision)
    }

    /// Applies the webhook's call after Istio's injector, with a stand-in for the proxy, which is taken out again.
    fn apply_with_proxy(&mut self, pod: &mut Value, object_ref: &str) -> Result<()> {
        if is_rendered(pod) {
            // istioctl kube-inject has added the proxy, and the first decision has seen it.
            return Ok(());
        }
        let mut with_proxy = pod.clone();
        let Some(containers) = with_proxy["spec"]["containers"].as_array_mut() else { return Ok(()) };
        let customised = containers.iter_mut().find(|container| is_proxy(container));
        let customised = customised.map(|container| std::mem::replace(container, proxy()));
        if customised.is_none() {
            containers.push(proxy());
        }
        json_patch::merge(&mut with_proxy, &injection_status(&json!(PROXY_STATUS)));
        let decision = self.decide(&with_proxy, object_ref)?;
        let is_parent = decision.mode == Mode::Status && !self.settings.native_sidecars;
        if is_parent || decision.mode == Mode::Proxy {
            let mode = decision.mode.as_str();
            let warning = format!("mode {mode} changes istio-proxy itself: the webhook does it, in the cluster");
            self.warn(object_ref, &warning);
            return Ok(());
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
        Ok(())
    }

    fn decide(&mut self, pod: &Value, object_ref: &str) -> Result<Decision> {
        let text = pod.to_string();
        let pod: Pod = serde_json::from_str(&text).with_context(|| format!("{object_ref}: its pod cannot be read"))?;
        let decision = decide(&pod, self.settings);
        for warning in &decision.warnings {
            self.warn(object_ref, warning);
        }
        Ok(decision)
    }

    fn warn(&mut self, object_ref: &str, warning: &str) {
        let line = format!("{object_ref}: {warning}");
        // Both decisions may have the same warning.
        if !self.warnings.contains(&line) {
            self.warnings.push(line);
        }
    }
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
