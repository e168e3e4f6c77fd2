//! Reads and writes the objects of one namespace.

use contract::kind::{CLUSTER_ROLES, POD_DEFAULTS, ROLE_BINDINGS};
use contract::names::{ACCESS_PIPELINES_LABEL, TENANCY_MANAGER};
use inject::tenancy::desired::DesiredTenancy;
use inject::tenancy::objects::ROLE_BINDING_NAME;
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Status;

use crate::plan::{Action, Installation, Observed};

/// Is the cause that the API server gives when it creates nothing in a namespace that is being deleted.
const TERMINATING: &str = "NamespaceTerminating";

/// Says how a write ended to which the API server gave a final answer. Any other write is retried.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Not needed: the namespace is deleted or being deleted, or the server does not have the kind.
    Gone,
    /// Rejected, or not done yet, with the reason.
    Refused(String),
}

/// Reads the objects of a namespace that matter to what it asks for.
pub(crate) async fn observe(
    client: &Client,
    installation: &Installation,
    namespace: &str,
    desired: &DesiredTenancy,
) -> kube::Result<Observed> {
    let has_role = match desired {
        DesiredTenancy::Objects { accounts, role } if !accounts.is_empty() && installation.roles.contains(role) => {
            api::get(client, CLUSTER_ROLES, None, role).await?.is_some()
        }
        _ => false,
    };
    let role_binding = api::get(client, ROLE_BINDINGS, Some(namespace), ROLE_BINDING_NAME).await?;
    let pod_default = api::get(client, POD_DEFAULTS, Some(namespace), ACCESS_PIPELINES_LABEL).await?;
    Ok(Observed { has_role, role_binding, pod_default })
}

/// Executes an action.
pub(crate) async fn execute(client: &Client, namespace: &str, action: &Action) -> kube::Result<Outcome> {
    let result = match action {
        Action::Apply { kind, object, replaces } => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let parameters = PatchParams { force: *replaces, ..PatchParams::apply(TENANCY_MANAGER) };
            let objects = api::objects(client, *kind, Some(namespace));
            objects.patch(name, &parameters, &Patch::Apply(object)).await.map(|_| None)
        }
        Action::Delete { kind, name, uid } => {
            let preconditions = Preconditions { uid: Some(uid.clone()), ..Preconditions::default() };
            let parameters = DeleteParams::default().preconditions(preconditions);
            let deleted = api::objects(client, *kind, Some(namespace)).delete(name, &parameters).await;
            deleted
                .map(|answer| answer.left().and_then(|object| object.metadata.finalizers).filter(|all| !all.is_empty()))
        }
    };
    match result {
        Ok(None) => Ok(Outcome::Done),
        // Until they are removed, the object exists, and a RoleBinding grants its rights.
        Ok(Some(finalizers)) => Ok(Outcome::Refused(format!("it has finalizers: {}", finalizers.join(", ")))),
        Err(kube::Error::Api(status)) if status.code == 404 || is_terminating(&status) => Ok(Outcome::Gone),
        // By RBAC, an admission policy or webhook, a quota, or the object's schema. A conflict (409) and too many requests (429) pass.
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 413 | 422) => {
            Ok(Outcome::Refused(status.message.clone()))
        }
        Err(error) => Err(error),
    }
}

fn is_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == TERMINATING)
}
