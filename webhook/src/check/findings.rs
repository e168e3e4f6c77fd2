//! What a cluster's state means for pods that are to complete: pure, one function for each thing that is looked at.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use contract::names::{
    ENABLED, INJECTION_LABEL, LEGACY_INJECTION_LABEL, PROXY_CONTAINER, SHIM_LABEL, STATUS_ANNOTATION,
};
use inject::{
    Settings, decide,
    pod::{Pod, Proxy},
};
use serde_json::Value;

use super::snapshot::{OURS, Snapshot, trust_in};
use super::{Finding, Level};
use crate::server_version::Version;
use crate::stuck::{Stuck, judge};

/// Kernels since this tell the exit codes of siblings.
const EXIT_CODES_SINCE: Version = Version { major: 6, minor: 15 };
/// How much of its life a certificate has left when it should have been renewed long since: a fifth, renewal being at a third.
const OVERDUE: i64 = 5;
/// A pod whose payload ended less than so many seconds ago is only ending.
const ENDING_FOR: i64 = 15;
/// Namespaces that are named one by one; the rest are counted.
const NAMED_AT_MOST: usize = 20;

/// Everything that is found.
pub(super) fn of(snapshot: &Snapshot, namespace: Option<&str>, settings: &Settings, now: i64) -> Vec<Finding> {
    // A server without native sidecars gets the shim in another way.
    let native_sidecars = snapshot.server.is_none_or(Version::has_native_sidecars);
    let settings = &Settings { native_sidecars, ..settings.clone() };
    let mut found = server(snapshot);
    found.extend(nodes(snapshot));
    found.extend(configuration(snapshot, now));
    found.extend(istio(snapshot));
    found.extend(namespaces(snapshot));
    found.extend(stuck(snapshot, now));
    if namespace.is_some() {
        found.extend(snapshot.pods.iter().filter_map(|pod| what_would_happen(pod, settings)));
    }
    found.extend(snapshot.unread.iter().map(|reason| Finding::note(reason.clone())));
    found
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn server(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(version) = snapshot.server else {
        return vec![Finding::note("the API server's version cannot be read")];
    };
    let line = if version.has_native_sidecars() {
        format!("Kubernetes {version}: the shim is a native sidecar")
    } else {
        format!("Kubernetes {version} has no native sidecars: the shim becomes istio-proxy's parent (mode proxy)")
    };
    vec![Finding::ok(line)]
}

fn nodes(snapshot: &Snapshot) -> Vec<Finding> {
    let info = |node: &Value, field: &str| text(node, &format!("/status/nodeInfo/{field}")).to_owned();
    let mut found = Vec::new();
    let old = |node: &&Value| {
        Version::parse(&info(node, "kubeletVersion")).is_some_and(|version| !version.has_native_sidecars())
    };
    let old: Vec<&str> = snapshot.nodes.iter().filter(old).map(name).collect();
    if !old.is_empty() && snapshot.server.is_some_and(Version::has_native_sidecars) {
        found.push(Finding::problem(
            format!(
                "nodes older than Kubernetes 1.29, which would take a native sidecar for an init container: {}",
                some(&old)
            ),
            "give the webhook --native-sidecars=off until they are newer",
        ));
    }
    let silent =
        |node: &&Value| Version::parse(&info(node, "kernelVersion")).is_some_and(|version| version < EXIT_CODES_SINCE);
    let silent: Vec<&str> = snapshot.nodes.iter().filter(silent).map(name).collect();
    if !silent.is_empty() {
        found.push(Finding::note(format!(
            "Linux before 6.15 does not tell exit codes of siblings: pods of restartPolicy OnFailure end a back-off later on {}",
            some(&silent)
        )));
    }
    if found.is_empty() && !snapshot.nodes.is_empty() {
        found.push(Finding::ok(format!(
            "{} node(s): kubelets know native sidecars, kernels tell exit codes",
            snapshot.nodes.len()
        )));
    }
    found
}

/// The first of some names, and how many more there are.
fn some(names: &[&str]) -> String {
    let first = names[..names.len().min(NAMED_AT_MOST)].join(", ");
    if names.len() > NAMED_AT_MOST { format!("{first} and {} more", names.len() - NAMED_AT_MOST) } else { first }
}

fn configuration(snapshot: &Snapshot, now: i64) -> Vec<Finding> {
    let Some(configurations) = &snapshot.configurations else { return Vec::new() };
    let Some(ours) = configurations.iter().find(|configuration| name(configuration) == OURS) else {
        if snapshot.has_policy {
            let decides = Finding::ok("the API server decides by itself, by the MutatingAdmissionPolicy istio-aux");
            // Policies come before every webhook.
            return [vec![decides], order(configurations, "")].concat();
        }
        return vec![Finding::problem(
            "istio-aux is not installed: there is no MutatingWebhookConfiguration istio-aux",
            "deploy/install",
        )];
    };
    let mut found = Vec::new();
    if snapshot.has_policy {
        found.push(Finding::note("webhook and policy are both installed: each leaves alone what the other has done"));
    }
    let trust: Vec<_> = items(&ours["webhooks"]).map(trust_in).collect();
    let next = format!("look at the webhook's log: kubectl -n {} logs deployment/istio-aux", namespace_of(ours));
    match trust.iter().flatten().min_by_key(|validity| validity.ends) {
        _ if trust.contains(&None) => found.push(Finding::problem(
            "the API server has no authority (caBundle) to trust the webhook by, so it refuses pods that are to complete",
            next,
        )),
        Some(validity) if validity.ends <= now => {
            found.push(Finding::problem("the authority that the API server trusts has expired", next));
        }
        Some(validity) if validity.ends - now < (validity.ends - validity.begins) / OVERDUE => {
            let left = span(validity.ends - now);
            found.push(Finding::problem(format!("the authority that the API server trusts expires in {left}"), next));
        }
        Some(validity) => {
            let left = span(validity.ends - now);
            found.push(Finding::ok(format!("the API server trusts the webhook, for {left} more")));
        }
        None => {}
    }
    found.extend(endpoints(snapshot, namespace_of(ours)));
    found.extend(order(configurations, OURS));
    found
}

/// The namespace of the Service that a configuration has called.
fn namespace_of(configuration: &Value) -> &str {
    text(configuration, "/webhooks/0/clientConfig/service/namespace")
}

fn span(seconds: i64) -> String {
    match seconds {
        ..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / (24 * 3600)),
    }
}

fn endpoints(snapshot: &Snapshot, namespace: &str) -> Option<Finding> {
    let all = snapshot.endpoints.as_ref()?.iter().flat_map(|slice| items(&slice["endpoints"]));
    let ready = all.filter(|endpoint| endpoint["conditions"]["ready"] != false);
    // A pod of two address families is in two slices.
    let ready: BTreeSet<&str> = ready.map(|endpoint| text(endpoint, "/targetRef/name")).collect();
    Some(match ready.len() {
        0 => Finding::problem(
            "no replica of the webhook is ready: pods that are to complete are refused in opted-in namespaces",
            format!("kubectl -n {namespace} describe pods"),
        ),
        1 => Finding::note(
            "only one replica of the webhook is ready: while it is away, pods that are to complete are refused",
        ),
        ready => Finding::ok(format!("{ready} replicas of the webhook are ready")),
    })
}

/// Whether Istio's injector is called after us, by the name that we have among the webhook configurations.
fn order(configurations: &[Value], ours: &str) -> Vec<Finding> {
    let injects = |configuration: &&Value| {
        items(&configuration["webhooks"]).any(|webhook| text(webhook, "/name").ends_with("sidecar-injector.istio.io"))
    };
    let injectors: Vec<&str> = configurations.iter().filter(injects).map(name).collect();
    if injectors.is_empty() {
        return vec![Finding::problem(
            "there is no sidecar injector of Istio",
            "istioctl install, or its Helm chart istiod",
        )];
    }
    let early: Vec<&str> = injectors.iter().copied().filter(|injector| *injector < ours).collect();
    if early.is_empty() {
        return vec![Finding::ok(format!("Istio's injector is called after istio-aux: {}", some(&injectors)))];
    }
    vec![Finding::note(format!(
        "called before istio-aux, so that istio-aux makes the proxy hold by itself: {}",
        some(&early)
    ))]
}

/// How Istio injects its proxy.
fn istio(snapshot: &Snapshot) -> Vec<Finding> {
    const SWITCH: &str = "ENABLE_NATIVE_SIDECARS";
    let mut found: Vec<Finding> = snapshot.istiods.iter().map(|istiod| {
        let containers = items(&istiod["spec"]["template"]["spec"]["containers"]);
        let switch = containers.flat_map(|container| items(&container["env"])).find(|variable| text(variable, "/name") == SWITCH);
        let place = format!("{}/{}", text(istiod, "/metadata/namespace"), name(istiod));
        match switch.map(|variable| text(variable, "/value")) {
            Some("true") => Finding::note(format!("{place} makes its proxies native sidecars ({SWITCH}): such pods need no shim, and get none")),
            Some(_) => Finding::ok(format!("{place} makes its proxies ordinary containers ({SWITCH} is off)")),
            None => Finding::ok(format!("{place} decides by itself whether its proxies are native sidecars (newer Istio: where every node is 1.33 or newer)")),
        }
    }).collect();
    let proxies: Vec<Proxy> = snapshot.pods.iter().filter_map(proxy).collect();
    let native = proxies.iter().filter(|proxy| **proxy == Proxy::Native).count();
    let classic = proxies.iter().filter(|proxy| **proxy == Proxy::Classic).count();
    if native + classic > 0 {
        found.push(Finding::ok(format!(
            "pods in the mesh: {classic} with an ordinary istio-proxy, {native} with a native sidecar"
        )));
    }
    found
}

fn proxy(pod: &Value) -> Option<Proxy> {
    let text = pod.to_string();
    serde_json::from_str::<Pod>(&text).ok().map(|pod| pod.proxy())
}

fn namespaces(snapshot: &Snapshot) -> Vec<Finding> {
    let label = |namespace: &Value, key: &str| namespace["metadata"]["labels"][key].as_str().map(str::to_owned);
    let (mut inside, mut outside, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for namespace in &snapshot.namespaces {
        let values = [INJECTION_LABEL, LEGACY_INJECTION_LABEL].map(|key| label(namespace, key));
        let name = name(namespace);
        if values.iter().flatten().any(|value| value == ENABLED) {
            let is_in_mesh = label(namespace, "istio-injection").is_some_and(|value| value == "enabled")
                || label(namespace, "istio.io/rev").is_some();
            if is_in_mesh { inside.push(name) } else { outside.push(name) }
        } else if let Some(value) = values.iter().flatten().find(|value| *value != "disabled") {
            found.push(Finding::problem(
                format!("namespace {name} is not opted in: its label says {value:?}, and only {ENABLED:?} counts"),
                format!("kubectl label namespace {name} --overwrite {INJECTION_LABEL}={ENABLED}"),
            ));
        }
    }
    if !inside.is_empty() {
        found.push(Finding::ok(format!("namespaces opted in: {}", some(&inside))));
    }
    if !outside.is_empty() {
        found.push(Finding::note(format!(
            "namespaces opted in that have no label of Istio's injector, so that only pods with their own are in the mesh: {}",
            some(&outside)
        )));
    }
    if inside.is_empty() && outside.is_empty() {
        let names: Vec<&str> = snapshot.namespaces.iter().map(name).collect();
        let (what, which) = match names.as_slice() {
            [name] => (format!("namespace {name} is not opted in"), *name),
            _ => ("no namespace is opted in".to_owned(), "NAME"),
        };
        let next = Some(format!("kubectl label namespace {which} {INJECTION_LABEL}={ENABLED}"));
        found.push(Finding { level: Level::Note, what, next });
    }
    found
}

fn stuck(snapshot: &Snapshot, now: i64) -> Vec<Finding> {
    let is_over = |stuck: &Stuck| seconds(&stuck.since).is_none_or(|ended| now - ended >= ENDING_FOR);
    let stuck = snapshot.pods.iter().filter_map(|pod| judge(pod).ok()).filter(is_over);
    stuck
        .map(|stuck| {
            let next = format!("istio-aux finish -n {} {}", stuck.namespace, stuck.name);
            Finding::problem(
                format!(
                    "pod {}/{} is stuck: its payload ended at {}, and only {PROXY_CONTAINER} runs",
                    stuck.namespace, stuck.name, stuck.since
                ),
                next,
            )
        })
        .collect()
}

/// Seconds since 1970 of a time in RFC 3339.
fn seconds(time: &str) -> Option<i64> {
    let since = humantime::parse_rfc3339(time).ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// What istio-aux did to a pod, or would do to one like it.
fn what_would_happen(pod: &Value, settings: &Settings) -> Option<Finding> {
    let raw = pod.to_string();
    let view: Pod = serde_json::from_str(&raw).ok()?;
    let place = format!("pod {}", name(pod));
    if view.label(SHIM_LABEL).is_some() || view.annotation(STATUS_ANNOTATION).is_some() {
        let status: Value =
            serde_json::from_str(view.annotation(STATUS_ANNOTATION).as_deref().unwrap_or("{}")).unwrap_or_default();
        return Some(Finding::ok(format!("{place} has mode {}: {}", text(&status, "/mode"), text(&status, "/why"))));
    }
    let decision = decide(&view, settings);
    let mut line = format!("{place}: one like it would get mode {}: {}", decision.mode.as_str(), decision.why);
    for warning in &decision.warnings {
        line = format!("{line}; {warning}");
    }
    Some(Finding::note(line))
}

#[cfg(test)]
mod tests;
