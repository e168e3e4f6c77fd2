//! The mutation without a cluster: manifests in, manifests out. Documents that it does not concern go through as they are,
//! to the byte; one that changes is written anew.

mod documents;
mod templates;

use std::fmt::Display;

use inject::{Decision, Mode, Settings, decide, pod::Pod};
use serde_json::{Value, json};

use self::documents::split;
use self::templates::Template;
use crate::stuck::is_proxy;

/// What became of some manifests.
#[derive(Debug, PartialEq, Eq)]
pub struct Injected {
    /// The manifests.
    pub text: String,
    /// What could not be done, and why: a line each, naming the object.
    pub warnings: Vec<String>,
    /// How many objects were changed.
    pub changed: usize,
}

/// The text is no manifests.
#[derive(Debug, thiserror::Error)]
#[error("document {number} (line {line}): {reason}")]
pub struct Error {
    /// Which of the documents, from 1.
    number: usize,
    /// The line of the text on which it begins, from 1.
    line: usize,
    /// What is wrong with it.
    reason: String,
}

/// Mutates every pod template of some manifests in YAML or JSON as the webhook would. The hold only, since Istio's proxy is
/// not there yet; with `assume_proxy` the shim, too, as a native sidecar: the other modes change the proxy itself.
pub fn inject(text: &str, settings: &Settings, assume_proxy: bool) -> Result<Injected, Error> {
    let mut injected = Injected { text: String::new(), warnings: Vec::new(), changed: 0 };
    // Some editors put a mark of byte order first, which is no part of any document.
    let content = text.trim_start_matches('\u{feff}');
    injected.text.push_str(&text[..text.len() - content.len()]);
    for document in split(content) {
        let wrong = |reason| Error { number: document.number, line: document.line, reason };
        let before = document.parse().map_err(wrong)?;
        let mut after = before.clone();
        let mut injecting = Injecting { settings, assume_proxy, warnings: &mut injected.warnings };
        injecting.object(&mut after).map_err(wrong)?;
        if after == before {
            injected.text.push_str(document.text);
        } else {
            injected.text.push_str(&document.render(&after).map_err(wrong)?);
            injected.changed += 1;
        }
    }
    Ok(injected)
}

struct Injecting<'a> {
    settings: &'a Settings,
    assume_proxy: bool,
    warnings: &'a mut Vec<String>,
}

impl Injecting<'_> {
    fn object(&mut self, object: &mut Value) -> Result<(), String> {
        if object["kind"] == "List" {
            let mut items = object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten();
            return items.try_for_each(|item| self.object(item));
        }
        let called = called(object);
        for template in templates::of(object) {
            self.template(object, &template, &called)?;
        }
        Ok(())
    }

    fn template(&mut self, object: &mut Value, template: &Template, called: &str) -> Result<(), String> {
        let mut pod = template.pod(object);
        self.apply(&mut pod, called)?;
        if self.assume_proxy {
            if template.has_containers() {
                self.apply_with_proxy(&mut pod, called)?;
            } else {
                self.warn(called, "its controller makes the containers: the webhook adds the shim, in the cluster");
            }
        }
        template.put_back(object, pod);
        Ok(())
    }

    /// What the webhook does before Istio's injector.
    fn apply(&mut self, pod: &mut Value, called: &str) -> Result<(), String> {
        let decision = self.decide(pod, called)?;
        patch(pod, &decision)
    }

    /// What it does after it: decided with a proxy in the pod, which then goes again.
    fn apply_with_proxy(&mut self, pod: &mut Value, called: &str) -> Result<(), String> {
        let has_proxy = |list: &str| pod["spec"][list].as_array().into_iter().flatten().any(is_proxy);
        if has_proxy("containers") || has_proxy("initContainers") {
            // It was injected by hand, and the first decision has seen it.
            return Ok(());
        }
        let mut with_proxy = pod.clone();
        let Some(containers) = with_proxy["spec"]["containers"].as_array_mut() else { return Ok(()) };
        containers.push(proxy());
        let decision = self.decide(&with_proxy, called)?;
        if matches!(decision.mode, Mode::Proxy | Mode::Wrap) {
            let mode = decision.mode.as_str();
            self.warn(called, &format!("mode {mode} changes istio-proxy itself: the webhook does it, in the cluster"));
            return Ok(());
        }
        patch(&mut with_proxy, &decision)?;
        if let Some(containers) = with_proxy["spec"]["containers"].as_array_mut() {
            containers.retain(|container| !is_proxy(container));
        }
        *pod = with_proxy;
        Ok(())
    }

    fn decide(&mut self, pod: &Value, called: &str) -> Result<Decision, String> {
        let text = pod.to_string();
        let pod: Pod =
            serde_json::from_str(&text).map_err(|error| format!("{called}: its pod cannot be read: {error}"))?;
        let decision = decide(&pod, self.settings);
        for warning in &decision.warnings {
            self.warn(called, warning);
        }
        Ok(decision)
    }

    fn warn(&mut self, called: &str, warning: &str) {
        let line = format!("{called}: {warning}");
        // Said once, where both decisions come to it.
        if !self.warnings.contains(&line) {
            self.warnings.push(line);
        }
    }
}

fn patch(pod: &mut Value, decision: &Decision) -> Result<(), String> {
    let fault = |error: &dyn Display| format!("a patch does not fit, which is a fault of istio-aux: {error}");
    let operations: json_patch::Patch =
        serde_json::from_slice(decision.patch.as_json()).map_err(|error| fault(&error))?;
    json_patch::patch(pod, &operations).map_err(|error| fault(&error))
}

/// A stand-in for what Istio's injector adds; it holds the payload already.
fn proxy() -> Value {
    json!({"name": "istio-proxy", "lifecycle": {"postStart": {}}})
}

/// Kind and name, for messages.
fn called(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or("?");
    format!("{}/{name}", object["kind"].as_str().unwrap_or("?"))
}

#[cfg(test)]
mod tests;
