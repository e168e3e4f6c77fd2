//! Reads and writes the objects of one namespace.

use contract::kind::{CLUSTER_ROLES, POD_DEFAULTS, ROLE_BINDINGS};
use contract::names::{ACCESS_PIPELINES_LABEL, PIPELINES_ROLE, TENANCY_MANAGER};
use inject::tenancy::objects::ROLE_BINDING_NAME;
use inject::tenancy::wish::Wish;
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Status;

use crate::plan::{Action, Observed};

/// Is the cause that the API server gives when it creates nothing in a namespace that is being deleted.
const TERMINATING: &str = "NamespaceTerminating";

/// Reads the objects of a namespace that matter to its wish.
pub(super) async fn observe(client: &Client, namespace: &str, wish: &Wish) -> kube::Result<Observed> {
    if matches!(wish, Wish::Unclear(_)) {
        return Ok(Observed::default());
    }
    let has_role = match wish {
        Wish::Objects { .. } => api::get(client, CLUSTER_ROLES, None, PIPELINES_ROLE).await?.is_some(),
        _ => false,
    };
    let role_binding = api::get(client, ROLE_BINDINGS, Some(namespace), ROLE_BINDING_NAME).await?;
    let pod_default = api::get(client, POD_DEFAULTS, Some(namespace), ACCESS_PIPELINES_LABEL).await?;
    Ok(Observed { has_role, role_binding, pod_default })
}

/// Executes an action. Returns false if it is not needed: the namespace is deleted, or being deleted, or the server does not
/// have the kind.
pub(super) async fn execute(client: &Client, namespace: &str, action: &Action) -> kube::Result<bool> {
    let result = match action {
        Action::Apply { kind, object, replaces } => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let parameters = PatchParams { force: *replaces, ..PatchParams::apply(TENANCY_MANAGER) };
            let objects = api::objects(client, *kind, Some(namespace));
            objects.patch(name, &parameters, &Patch::Apply(object)).await.map(drop)
        }
        Action::Delete { kind, name, uid } => {
            let preconditions = Preconditions { uid: Some(uid.clone()), ..Preconditions::default() };
            let parameters = DeleteParams::default().preconditions(preconditions);
            api::objects(client, *kind, Some(namespace)).delete(name, &parameters).await.map(drop)
        }
    };
    match result {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if the API server did nothing because the namespace is deleted or it does not have the kind.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || is_terminating(status))
}

fn is_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == TERMINATING)
}
