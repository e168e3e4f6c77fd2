//! Finds why a tenant of Kubeflow gets a 401 or 403, and policies by which others can pass for the tenant. Pure.

use std::collections::BTreeSet;

use contract::names::{
    ACCESS_PIPELINES_LABEL, AMBIENT_LABEL, ENABLED, INJECTION_LABEL, MESH_LABEL, PIPELINES_ACCOUNTS_ANNOTATION,
    PIPELINES_ROLE, PIPELINES_TOKEN_LABEL, RUN_TO_COMPLETION, TENANCY_LABEL,
};
use inject::tenancy::desired::{DesiredTenancy, unknown_values};
use inject::tenancy::objects::{ROLE_BINDING_NAME, installation_of, role_binding};
use serde_json::Value;

use super::super::finding::{Finding, Id};
use super::super::snapshot::Snapshot;
use super::super::tenant::{Tenant, TenantPod, desired_tenancy_of};
use super::{items, name, some, text};
use crate::pods::{entries, label};

/// Lists the roles that let an account use pipelines: ours, and Kubeflow's, by aggregation.
const ROLES_FOR_PIPELINES: [&str; 4] = [PIPELINES_ROLE, "kubeflow-pipelines-edit", "kubeflow-edit", "kubeflow-admin"];
/// Names the header in which Kubeflow's gateway passes the user, as a policy's condition does.
const USER_HEADER: &str = "request.headers[kubeflow-userid]";

pub(super) fn of(snapshot: &Snapshot) -> Vec<Finding> {
    let (Some(tenant), [namespace]) = (&snapshot.tenant, snapshot.namespaces.as_slice()) else { return Vec::new() };
    let pods = &snapshot.pods.tenants;
    let mut findings = objects(namespace, tenant);
    findings.extend(pipelines(namespace, tenant, pods));
    findings.extend(outside_the_mesh(namespace, tenant, pods));
    findings.extend(tenant.policies.iter().filter(|policy| admits_any_caller(policy)).map(impersonation));
    findings
}

/// Checks that the namespace has the objects that its label asks for.
fn objects(namespace: &Value, tenant: &Tenant) -> Vec<Finding> {
    let place = name(namespace);
    let (labels, desired) = (entries(namespace, "labels"), desired_tenancy_of(namespace));
    let mut findings: Vec<Finding> = unknown_values(&labels)
        .into_iter()
        .map(|line| {
            let message = format!("namespace {place}: {line}");
            Finding::problem(Id::Tenancy, message, format!("kubectl label namespace {place} --overwrite KEY=VALUE"))
        })
        .collect();
    match &desired {
        DesiredTenancy::Objects { accounts, role } => findings.extend(binding(place, tenant, role, accounts)),
        DesiredTenancy::Invalid { annotation, reason } if findings.is_empty() => {
            let next = format!("kubectl annotate namespace {place} --overwrite {annotation}=VALUE");
            let message = format!("namespace {place}: annotation {annotation}: {reason}");
            findings.push(Finding::problem(Id::Tenancy, message, next));
        }
        DesiredTenancy::Invalid { .. } | DesiredTenancy::Nothing => {}
    }
    if desired != DesiredTenancy::Nothing
        && tenant.pod_default.as_ref().is_some_and(|found| installation_of(found).is_none())
    {
        let message =
            format!("PodDefault {ACCESS_PIPELINES_LABEL} in {place} is not managed by istio-aux; left unchanged");
        findings.push(Finding::info(Id::Tenancy, message));
    }
    findings
}

/// Checks the `RoleBinding` that the namespace asks for; `None` if it cannot be read.
fn binding(place: &str, tenant: &Tenant, role: &str, accounts: &[String]) -> Option<Finding> {
    if accounts.is_empty() {
        let message = format!("namespace {place} has what its label {TENANCY_LABEL} asks for; no account is bound");
        let next =
            format!("to bind some: kubectl annotate namespace {place} {PIPELINES_ACCOUNTS_ANNOTATION}=NAME,NAME");
        return Some(Finding::info(Id::Tenancy, message).with_remediation(next));
    }
    let bindings = tenant.role_bindings.as_ref()?;
    let desired = role_binding(place, role, accounts);
    let found = bindings.iter().find(|binding| name(binding) == ROLE_BINDING_NAME);
    let is_kept = |found: &Value| ["roleRef", "subjects"].iter().all(|field| found[field] == desired[field]);
    Some(match found {
        Some(found) if !is_kept(found) && installation_of(found).is_none() => Finding::problem(
            Id::Tenancy,
            format!("RoleBinding {ROLE_BINDING_NAME} in {place} is not managed by istio-aux; left unchanged"),
            format!("kubectl -n {place} delete rolebinding {ROLE_BINDING_NAME}"),
        ),
        _ if tenant.has_role == Some(false) => Finding::problem(
            Id::Tenancy,
            format!("there is no ClusterRole {role}, so no account of {place} is bound to it"),
            "install what brings it: istio-aux with tenancy.enabled=true, or Kubeflow Pipelines for multiple users",
        ),
        found if !found.is_some_and(is_kept) => {
            let has = if found.is_none() { "none" } else { "another" };
            Finding::problem(
                Id::Tenancy,
                format!("namespace {place} asks for a binding by {TENANCY_LABEL}, and has {has}"),
                format!("kubectl -n {place} get events says why, where the tenancy controller runs"),
            )
        }
        _ => Finding::ok(Id::Tenancy, format!("namespace {place} has what its label {TENANCY_LABEL} asks for")),
    })
}

/// Finds why Kubeflow Pipelines answers 401 or 403.
fn pipelines(namespace: &Value, tenant: &Tenant, pods: &[TenantPod]) -> Vec<Finding> {
    let place = name(namespace);
    let mut findings = Vec::new();
    let without_token: Vec<&str> = pods.iter().filter(|pod| !pod.has_token).map(|pod| pod.name.as_str()).collect();
    if !without_token.is_empty() {
        let message =
            format!("pods without a token for Kubeflow Pipelines, which answers them 401: {}", some(&without_token));
        let next = if label(namespace, PIPELINES_TOKEN_LABEL) == Some(ENABLED) {
            "create them again: they are older than the namespace's label, or the webhook was unavailable".to_owned()
        } else {
            format!("kubectl label namespace {place} {PIPELINES_TOKEN_LABEL}={ENABLED}, and create them again")
        };
        findings.push(Finding::info(Id::PipelinesAccess, message).with_remediation(next));
    }
    if let Some(bindings) = &tenant.role_bindings {
        let (role, bound_by_us) = match desired_tenancy_of(namespace) {
            DesiredTenancy::Objects { role, accounts } => (Some(role), accounts),
            _ => (None, Vec::new()),
        };
        let bound = bound_accounts(place, bindings, role.as_deref());
        let unbound: BTreeSet<&str> =
            pods.iter().map(|pod| pod.account.as_str()).filter(|account| !bound.contains(account)).collect();
        if !unbound.is_empty() {
            let names: Vec<&str> = unbound.into_iter().collect();
            let message = format!(
                "service accounts without rights to Kubeflow Pipelines, which answers them 403: {}",
                some(&names)
            );
            let all: BTreeSet<&str> = names.iter().copied().chain(bound_by_us.iter().map(String::as_str)).collect();
            let next = format!(
                "kubectl label namespace {place} {TENANCY_LABEL}={ENABLED}, and kubectl annotate namespace {place} --overwrite \
                 {PIPELINES_ACCOUNTS_ANNOTATION}={}, without those that submit no runs",
                all.into_iter().collect::<Vec<_>>().join(",")
            );
            findings.push(Finding::info(Id::PipelinesAccess, message).with_remediation(next));
        }
    }
    findings
}

/// Returns the accounts of a namespace that are bound to one of Kubeflow's roles, or to the one that the namespace asks for.
fn bound_accounts<'b>(namespace: &str, bindings: &'b [Value], asked: Option<&str>) -> BTreeSet<&'b str> {
    let for_pipelines = |binding: &&Value| {
        let role = text(binding, "/roleRef/name");
        ROLES_FOR_PIPELINES.contains(&role) || asked == Some(role)
    };
    let subjects = bindings.iter().filter(for_pipelines).flat_map(|binding| items(&binding["subjects"]));
    let accounts = subjects.filter(|subject| subject["kind"] == "ServiceAccount" && subject["namespace"] == namespace);
    accounts.map(|account| text(account, "/name")).collect()
}

/// Finds pods without an identity in the mesh, in a namespace whose policies ask for one.
fn outside_the_mesh(namespace: &Value, tenant: &Tenant, pods: &[TenantPod]) -> Option<Finding> {
    if label(namespace, AMBIENT_LABEL) == Some("ambient") {
        return None;
    }
    let outside = pods.iter().filter(|pod| pod.lacks_proxy);
    let outside: Vec<&str> = outside.map(|pod| pod.name.as_str()).collect();
    let policies: Vec<&str> = tenant.policies.iter().filter(|policy| asks_for_identity(policy)).map(name).collect();
    let is_strict = |found: &&Value| text(found, "/spec/mtls/mode") == "STRICT";
    let strict: Vec<&str> = tenant.peer_authentications.iter().filter(is_strict).map(name).collect();
    let why = match (policies.as_slice(), strict.as_slice()) {
        _ if outside.is_empty() => return None,
        ([], []) => return None,
        (_, [_, ..]) => format!(
            "STRICT mutual TLS rejects their connections to services here (PeerAuthentication {})",
            some(&strict)
        ),
        (_, []) => format!("services here answer them 403 (AuthorizationPolicy {})", some(&policies)),
    };
    let place = name(namespace);
    let message = format!("pods without a proxy, and so without an identity: {}; {why}", some(&outside));
    let next = format!(
        "kubectl label namespace {place} {INJECTION_LABEL}={ENABLED} {MESH_LABEL}={RUN_TO_COMPLETION}, and create them again"
    );
    Some(Finding::info(Id::MeshClient, message).with_remediation(next))
}

/// Returns true if a policy admits callers by their identity.
fn asks_for_identity(policy: &Value) -> bool {
    const KEYS: [&str; 3] = ["source.namespace", "source.principal", "source.serviceAccount"];
    const FIELDS: [&str; 3] = ["namespaces", "principals", "serviceAccounts"];
    items(&policy["spec"]["rules"]).any(|rule| {
        let by_source = items(&rule["from"]).any(|from| FIELDS.iter().any(|field| !from["source"][field].is_null()));
        by_source || items(&rule["when"]).any(|when| KEYS.contains(&text(when, "/key")))
    })
}

/// Returns true if a policy admits every caller that sends the user's header, with any value.
fn admits_any_caller(policy: &Value) -> bool {
    let is_allowing = matches!(text(policy, "/spec/action"), "" | "ALLOW");
    let is_any = |when: &Value| text(when, "/key") == USER_HEADER && items(&when["values"]).any(|value| value == "*");
    let is_open = |rule: &Value| {
        rule["from"].is_null() && items(&rule["when"]).next().is_some() && items(&rule["when"]).all(is_any)
    };
    is_allowing && items(&policy["spec"]["rules"]).any(is_open)
}

fn impersonation(policy: &Value) -> Finding {
    let (place, policy) = (text(policy, "/metadata/namespace"), name(policy));
    let message = format!(
        "AuthorizationPolicy {place}/{policy} lets every caller of the mesh pass for any user, by the header kubeflow-userid"
    );
    let next = "add to its rule a `from` with the principal of Kubeflow's ingress gateway";
    Finding::problem(Id::ProfilePolicy, message, next)
}

#[cfg(test)]
mod tests;
