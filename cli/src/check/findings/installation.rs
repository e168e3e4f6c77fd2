//! Judges the webhook or the policy: installed, trusted, ready, and called before Istio's injector.

use std::collections::BTreeSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use x509_parser::certificate::Validity;
use x509_parser::pem::Pem;

use super::super::finding::{Finding, Id};
use super::super::snapshot::{CONFIGURATION_NAME, SHIM_CONFIGURATION_NAME, Snapshot};
use super::{items, name, some, text};
use crate::installation::CLIENT_VERSION;
use crate::pods::INJECTOR;

/// A CA with less than a fifth of its validity left is overdue for renewal, which is due at a third.
const OVERDUE_DIVISOR: i64 = 5;
/// Is when the renewal of any CA is overdue, in seconds before its end.
const OVERDUE_AT_MOST: i64 = 30 * 24 * 3600;
/// Has cert-manager's Certificate whose CA is written into a webhook configuration.
const INJECTED_BY_CERT_MANAGER: &str = "cert-manager.io/inject-ca-from";

pub(super) fn of(snapshot: &Snapshot, now: i64) -> Vec<Finding> {
    let Some(configurations) = &snapshot.configurations else { return Vec::new() };
    let Some(ours) = configurations.iter().find(|configuration| name(configuration) == CONFIGURATION_NAME) else {
        return without_webhook(snapshot, configurations);
    };
    let namespace = text(ours, "/webhooks/0/clientConfig/service/namespace");
    let mut findings = Vec::new();
    if snapshot.has_policy == Some(true) {
        let message = "webhook and policy are both installed: each skips pods that the other has changed";
        findings.push(Finding::info(Id::Installation, message));
    } else {
        findings.push(Finding::ok(Id::Installation, format!("the webhook is installed in namespace {namespace}")));
    }
    let shims = configurations.iter().find(|configuration| name(configuration) == SHIM_CONFIGURATION_NAME);
    if shims.is_none() {
        let message = "there is no MutatingWebhookConfiguration zz-istio-aux, so no pod gets the shim";
        findings.push(Finding::problem(Id::Installation, message, "install again: docs/install.md"));
    }
    findings.extend(shims.and_then(failure_policy));
    findings.extend(other_versions(snapshot));
    findings.extend(ca_bundle([Some(ours), shims], namespace, now));
    findings.extend(replicas(snapshot, namespace, shims.is_some_and(is_ignored)));
    findings.push(order(configurations, CONFIGURATION_NAME));
    findings
}

/// Tells of pods that are admitted without their shim while the webhook is unavailable.
fn failure_policy(shims: &Value) -> Option<Finding> {
    let message =
        "failurePolicy is Ignore: while the webhook is unavailable, pods that would not complete are admitted";
    let finding = || Finding::info(Id::Installation, message).with_remediation("docs/outages.md has what that costs");
    is_ignored(shims).then(finding)
}

fn is_ignored(shims: &Value) -> bool {
    let requires = |webhook: &&Value| text(webhook, "/name").starts_with("require-shim.");
    items(&shims["webhooks"]).filter(requires).any(|webhook| webhook["failurePolicy"] == "Ignore")
}

fn other_versions(snapshot: &Snapshot) -> Option<Finding> {
    let mut versions = snapshot.webhooks.iter().filter_map(|webhook| webhook.version.as_ref());
    let other = versions.find(|version| *version != CLIENT_VERSION)?;
    let message = format!("the webhook has version {other}, and this program {CLIENT_VERSION}");
    Some(Finding::info(Id::Installation, message))
}

fn without_webhook(snapshot: &Snapshot, configurations: &[Value]) -> Vec<Finding> {
    // Without the right to read policies there may be one.
    let Some(has_policy) = snapshot.has_policy else { return Vec::new() };
    if has_policy {
        let message = "the API server decides by itself, by the MutatingAdmissionPolicy istio-aux-run-to-completion";
        // Policies are evaluated before every webhook.
        return vec![Finding::ok(Id::Installation, message), order(configurations, "")];
    }
    vec![Finding::problem(
        Id::Installation,
        "istio-aux is not installed: there is no MutatingWebhookConfiguration istio-aux",
        "istio-aux check --pre, then docs/install.md",
    )]
}

fn ca_bundle(ours: [Option<&Value>; 2], namespace: &str, now: i64) -> Option<Finding> {
    let webhooks = ours.into_iter().flatten().flat_map(|configuration| items(&configuration["webhooks"]));
    let bundles: Vec<_> = webhooks.map(validity_of_bundle).collect();
    let certificate = ours[0].and_then(|ours| ours["metadata"]["annotations"][INJECTED_BY_CERT_MANAGER].as_str());
    let service = ours[0].map(|ours| text(ours, "/webhooks/0/clientConfig/service/name")).unwrap_or_default();
    let remediation = certificate.map_or_else(
        || format!("look at the webhook's log: kubectl -n {namespace} logs deployment/{service}"),
        |name| format!("look at cert-manager's Certificate {name}, and at the log of its cainjector"),
    );
    let problem = |message: String| Some(Finding::problem(Id::CaBundle, message, remediation.clone()));
    if bundles.contains(&None) {
        let message = "the API server has no CA (caBundle) for the webhook, so it rejects pods that would not complete";
        return problem(message.to_owned());
    }
    let validity = bundles.into_iter().flatten().min_by_key(|validity| validity.not_after.timestamp())?;
    let [begin, end] = [validity.not_before, validity.not_after].map(|time| time.timestamp());
    let left = end - now;
    if left <= 0 {
        return problem("the CA that the API server trusts has expired".to_owned());
    }
    if left < ((end - begin) / OVERDUE_DIVISOR).min(OVERDUE_AT_MOST) {
        return problem(format!("the CA that the API server trusts expires in {}", span(left)));
    }
    Some(Finding::ok(Id::CaBundle, format!("the API server has a CA for the webhook, for {} more", span(left))))
}

/// Returns the validity of the CA in a `caBundle` that expires last.
fn validity_of_bundle(webhook: &Value) -> Option<Validity> {
    let bundle = BASE64_STANDARD.decode(webhook["clientConfig"]["caBundle"].as_str()?).ok()?;
    let each = Pem::iter_from_buffer(&bundle).filter_map(|pem| Some(pem.ok()?.parse_x509().ok()?.validity().clone()));
    each.max_by_key(|validity| validity.not_after.timestamp())
}

fn span(seconds: i64) -> String {
    match seconds {
        ..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / (24 * 3600)),
    }
}

fn replicas(snapshot: &Snapshot, namespace: &str, is_ignored: bool) -> Option<Finding> {
    let become_of = if is_ignored { "admitted, and hang" } else { "rejected" };
    let all = snapshot.endpoints.as_ref()?.iter().flat_map(|slice| items(&slice["endpoints"]));
    let ready = all.filter(|endpoint| endpoint["conditions"]["ready"] != false);
    // A pod with addresses of two families is in two slices.
    let ready: BTreeSet<&str> = ready.map(|endpoint| text(endpoint, "/targetRef/name")).collect();
    Some(match ready.len() {
        0 => Finding::problem(
            Id::WebhookReplicas,
            format!("no replica of the webhook is ready: opted-in pods that would not complete are {become_of}"),
            format!("kubectl -n {namespace} get deployments,pods,events; docs/outages.md has what helps at once"),
        ),
        1 => Finding::info(
            Id::WebhookReplicas,
            format!(
                "only one replica of the webhook is ready: without it, opted-in pods that would not complete are {become_of}"
            ),
        ),
        ready => Finding::ok(Id::WebhookReplicas, format!("{ready} replicas of the webhook are ready")),
    })
}

/// Checks that Istio's injector is called after us. The API server calls webhook configurations by name.
pub(crate) fn order(configurations: &[Value], ours: &str) -> Finding {
    let injects = |configuration: &&Value| {
        items(&configuration["webhooks"]).any(|webhook| text(webhook, "/name").ends_with(INJECTOR))
    };
    let injectors: Vec<&str> = configurations.iter().filter(injects).map(name).collect();
    if injectors.is_empty() {
        return Finding::problem(
            Id::IstioInjector,
            "there is no sidecar injector of Istio",
            "istioctl install, or its Helm chart istiod",
        );
    }
    let late: Vec<&str> = injectors.iter().copied().filter(|injector| *injector > SHIM_CONFIGURATION_NAME).collect();
    if !late.is_empty() && !ours.is_empty() {
        // A webhook whose conditions did not match is not called in the second round.
        let message = format!("called after {SHIM_CONFIGURATION_NAME}, so their pods get no shim: {}", some(&late));
        let next = format!("give the MutatingWebhookConfiguration a name that sorts before {SHIM_CONFIGURATION_NAME}");
        return Finding::problem(Id::IstioInjector, message, next);
    }
    let early: Vec<&str> = injectors.iter().copied().filter(|injector| *injector < ours).collect();
    if early.is_empty() {
        let message = format!("Istio's injector is called after istio-aux: {}", some(&injectors));
        return Finding::ok(Id::IstioInjector, message);
    }
    let message = "called before istio-aux, which then adds the startup hold to the proxy itself";
    Finding::info(Id::IstioInjector, format!("{message}: {}", some(&early)))
}
