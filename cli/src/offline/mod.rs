//! Injects manifests without a cluster. Documents that need no change go through byte for byte; a document that changes is
//! written again from its content.

mod documents;
mod injector;

use anyhow::{Context, Result};
use inject::Settings;
use serde_json::Value;

use self::documents::split;
use self::injector::ManifestInjector;

/// Holds manifests after a mutation.
#[derive(Debug, PartialEq, Eq)]
pub struct Injected {
    /// Has the manifests, in the order of the input.
    pub text: String,
    /// Says what could not be done, and why: one line each, with the object.
    pub warnings: Vec<String>,
}

/// Mutates every pod template in YAML or JSON manifests as the webhook would before Istio's injector: only the startup hold.
/// With `assume_proxy` it also adds the shim as a native sidecar. The other modes patch istio-proxy, which manifests lack.
pub fn inject(text: &str, settings: &Settings, assume_proxy: bool) -> Result<Injected> {
    let mut injector = ManifestInjector { settings, assume_proxy, warnings: Vec::new() };
    // Some editors write a byte order mark first, which belongs to no document.
    let content = text.trim_start_matches('\u{feff}');
    let mut rewritten = text[..text.len() - content.len()].to_owned();
    for document in split(content) {
        let place = || format!("document {} (line {})", document.number, document.line);
        let before = document.parse().with_context(place)?;
        let mut after = before.clone();
        inject_each(&mut after, &mut injector).with_context(place)?;
        if after == before {
            rewritten.push_str(document.text);
        } else {
            rewritten.push_str(&document.render(&after).with_context(place)?);
        }
    }
    Ok(Injected { text: rewritten, warnings: injector.warnings })
}

/// Injects an object, or each item of a list.
fn inject_each(object: &mut Value, injector: &mut ManifestInjector<'_>) -> Result<()> {
    if object["kind"] != "List" {
        return injector.inject(object);
    }
    let items = object.get_mut("items").and_then(Value::as_array_mut);
    items.into_iter().flatten().try_for_each(|item| inject_each(item, injector))
}

#[cfg(test)]
mod tests;
