//! Removes an installation with the caller's own rights, in an order that rejects no pod and leaves no controller.
//! Deletes only objects that istio-aux' manifests name, or that its controller has applied. Each step is done before the next
//! begins, so it can be run again wherever it stopped.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use contract::kind::{DEPLOYMENTS, NAMESPACES, POD_DEFAULTS, PODS, ROLE_BINDINGS};
use contract::names::{MANAGED_BY_LABEL, NODE, PROXY_LABEL, SHIM_LABEL, TENANCY_MANAGER};
use inject::args::default_settings;
use inject::tenancy::objects::installation_of;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::check::{CONFIGURATION_NAME, UNFINISHED, webhook_service};
use crate::installation::{all_objects, configurations};
use crate::policy;
use crate::read::{self, CLUSTER_ROLE_BINDINGS, account_of};

/// The label of every object of the manifests.
const NAME_LABEL: &str = "app.kubernetes.io/name";
const NAME: &str = "istio-aux";
/// The label of every object of a release of the chart, such as `istio-aux-0.1.0`, whatever its names are.
const CHART_LABEL: &str = "helm.sh/chart";
/// The label by which Juju knows what a charm has created.
const CHARM_LABEL: &str = "app.juju.is/created-by";
/// The annotations by which Helm knows what belongs to a release.
const RELEASE_NAME: &str = "meta.helm.sh/release-name";
const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";
/// Marks of what a tool such as Argo CD keeps: JSON Pointer, tool, and how to suspend it.
const KEPT_BY: [(&str, &str, &str); 3] = [
    ("/metadata/annotations/argocd.argoproj.io~1tracking-id", "Argo CD", "argocd app set NAME --sync-policy none"),
    ("/metadata/labels/kustomize.toolkit.fluxcd.io~1name", "Flux", "flux suspend kustomization NAME"),
    ("/metadata/labels/helm.toolkit.fluxcd.io~1name", "Flux", "flux suspend helmrelease NAME"),
];
/// Kinds by which the API server calls something for each pod. Left behind, they reject pods.
const ADMISSION_KINDS: [&str; 3] =
    ["MutatingWebhookConfiguration", "MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"];
/// How often pods are listed until the controller's have gone.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Holds what an uninstallation deletes and leaves.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Deleted first, one after the other.
    admission: Vec<Value>,
    controller: Option<Value>,
    /// What the controller has applied in tenants' namespaces.
    tenants: Vec<Value>,
    /// The rest, without the namespace; empty where Helm keeps it.
    others: Vec<Value>,
    /// Commands that remove what is left.
    pub(crate) next: Vec<String>,
    /// Unfinished pods in mode status, `NAMESPACE/NAME`: without the webhook they do not complete.
    pub(crate) waiting_pods: Vec<String>,
    /// Names the tool that keeps the objects in the cluster, and what suspends it.
    pub(crate) kept_by: Option<String>,
}

/// Tells what became of an object.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Deletion {
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// `None` if it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Plan {
    /// Returns the objects in the order of their deletion.
    fn objects(&self) -> impl Iterator<Item = &Value> {
        self.admission.iter().chain(&self.controller).chain(&self.tenants).chain(&self.others)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects().count()
    }
}

/// Reads what there is to remove: of the installation in this namespace, or in the one that its cluster-scoped objects name.
/// `Err` if anything cannot be read, so that nothing is overlooked.
pub(crate) async fn plan(client: &Client, namespace: Option<String>) -> Result<Plan> {
    let configurations = configurations(client).await?;
    let ours = configurations.iter().find(|it| it["metadata"]["name"] == CONFIGURATION_NAME);
    let label = |key| ours.and_then(|it| it["metadata"]["labels"][key].as_str());
    if let Some(application) = label(CHARM_LABEL) {
        bail!("the installation is a charm's; next: juju remove-application {application}");
    }
    let (known, controller) = names(client, namespace, &configurations, label(NAME_LABEL)).await?;
    let namespace = known.as_deref().unwrap_or(NAME);
    let (mut plan, mut release, mut kept_by) = (Plan::default(), None, None);
    for manifest in manifests(namespace, &controller)? {
        // The profiles share objects, and a server may have one in two versions.
        if plan.objects().any(|known| is_same(known, &manifest)) {
            continue;
        }
        let Some(object) = find(client, &manifest).await? else { continue };
        kept_by = kept_by.or_else(|| KEPT_BY.iter().find(|(pointer, ..)| object.pointer(pointer).is_some()));
        let annotation = |key| object["metadata"]["annotations"][key].as_str().map(str::to_owned);
        let helms = annotation(RELEASE_NAME).zip(annotation(RELEASE_NAMESPACE));
        let is_helms = helms.is_some();
        release = release.or(helms);
        if object["kind"] == "Namespace" {
            plan.next.push(format!("kubectl delete namespace {namespace}"));
        } else if ADMISSION_KINDS.iter().any(|kind| object["kind"] == *kind) {
            plan.admission.push(object);
        } else if object["kind"] == DEPLOYMENTS.name && object["metadata"]["name"] == *controller {
            plan.controller = Some(object);
        } else if !is_helms {
            plan.others.push(object);
        }
    }
    plan.kept_by = kept_by
        .map(|(_, tool, suspend)| format!("{tool} keeps these objects, and creates them again; next: {suspend}"));
    plan.admission.sort_by_key(|object| ADMISSION_KINDS.iter().position(|kind| object["kind"] == *kind));
    // It names the account, and so the namespace of the rest.
    plan.others.sort_by_key(|object| object["kind"] == CLUSTER_ROLE_BINDINGS.name);
    for kind in [ROLE_BINDINGS, POD_DEFAULTS] {
        let selection = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={TENANCY_MANAGER}"));
        let mut listed = read::list_if_served(client, kind, None, &selection).await?;
        listed.retain(|object| installation_of(object).is_some_and(|of| known.is_none() || of == namespace));
        for object in &mut listed {
            // Items of a list have neither.
            object["apiVersion"] = kind.api_version().into();
            object["kind"] = kind.name.into();
        }
        plan.tenants.extend(listed);
    }
    if let Some((name, namespace)) = release {
        plan.next.push(format!("helm uninstall {name} --namespace {namespace}"));
        // Helm keeps the namespace that it created. Another one may hold other objects.
        if namespace == NAME {
            plan.next.push(format!("kubectl delete namespace {namespace}"));
        }
    }
    let selection = ListParams::default().labels(&format!("{SHIM_LABEL}=status")).fields(UNFINISHED);
    plan.waiting_pods = read::list(client, PODS, None, &selection).await?.iter().map(place).collect();
    let selection = ListParams::default().labels(&format!("{PROXY_LABEL}={NODE}"));
    let labelled = read::list_if_served(client, NAMESPACES, None, &selection).await?;
    let names: Vec<&str> = labelled.iter().filter_map(|namespace| namespace["metadata"]["name"].as_str()).collect();
    if !names.is_empty() {
        // Their new pods would have neither this proxy nor Istio's.
        plan.next.push(format!("kubectl label namespace {} {PROXY_LABEL}-", names.join(" ")));
    }
    Ok(plan)
}

/// Returns the namespace of the installation, where anything names it, and the controller's name: a release may have another name than
/// the chart's. If an earlier run has deleted the configurations, both come from the bound accounts.
async fn names(
    client: &Client,
    namespace: Option<String>,
    configurations: &[Value],
    release: Option<&str>,
) -> Result<(Option<String>, String)> {
    let usual = format!("{NAME}-tenancy");
    let bound = if release.is_some() { None } else { account_with(client, &usual).await? };
    let installed_in = match webhook_service(configurations) {
        Some((namespace, _)) => Some(namespace),
        None => account_with(client, NAME).await?.or(bound.clone()).map(|[namespace, _]| namespace),
    };
    // Objects of the cluster have no namespace: those of another installation would be deleted.
    if let (Some(given), Some(installed_in)) = (&namespace, &installed_in)
        && given != installed_in
    {
        bail!("the installation is in namespace {installed_in}, not in {given}; next: leave out --namespace");
    }
    let controller = match (release, bound) {
        (Some(release), _) => format!("{release}-tenancy"),
        (None, Some([_, name])) => name,
        (None, None) => usual,
    };
    Ok((installed_in.or(namespace), controller))
}

/// Returns namespace and name of the account to which the rights of this name are bound, where there are any.
async fn account_with(client: &Client, rights: &str) -> Result<Option<[String; 2]>> {
    let binding = read::get(client, CLUSTER_ROLE_BINDINGS, None, rights).await?.filter(is_ours);
    Ok(binding.as_ref().and_then(account_of))
}

/// Returns what an installation may have, as the manifests of both profiles say, with the controller of this name.
fn manifests(namespace: &str, controller: &str) -> Result<Vec<Value>> {
    let mut objects = all_objects(namespace)?;
    let metadata = json!({"name": controller, "namespace": namespace});
    objects.push(json!({"apiVersion": DEPLOYMENTS.api_version(), "kind": DEPLOYMENTS.name, "metadata": metadata}));
    for version in ["v1", "v1beta1"] {
        let text = policy::manifests(&default_settings(), version)?;
        objects.extend(serde_saphyr::from_multiple::<Value>(&text).context("cannot read the policies")?);
    }
    Ok(objects)
}

/// Returns true if both are of one kind, name and namespace, in whichever version.
fn is_same(one: &Value, other: &Value) -> bool {
    let namespace = |object: &Value| object["metadata"]["namespace"].clone();
    describe(one) == describe(other) && namespace(one) == namespace(other)
}

/// Returns true if an object has istio-aux' labels. Its name alone does not identify it.
fn is_ours(object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    let is_charts = labels[CHART_LABEL].as_str().is_some_and(|chart| chart.starts_with("istio-aux-"));
    is_charts || labels[NAME_LABEL] == NAME
}

/// Reads the object that a manifest names, if it is istio-aux'.
async fn find(client: &Client, manifest: &Value) -> Result<Option<Value>> {
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let found = api::find(&api_of(client, manifest), name).await;
    Ok(found.with_context(|| format!("cannot read {}", describe(manifest)))?.filter(is_ours))
}

/// Deletes what a plan names, and reports each at once. Waits, up to `limit`, until the controller's pods have gone. `Err` if what
/// has to go first stays.
pub(crate) async fn run(client: &Client, plan: &Plan, limit: Duration, mut report: impl FnMut(Deletion)) -> Result<()> {
    for object in plan.admission.iter().chain(&plan.controller) {
        let deletion = delete(client, object).await;
        let is_gone = deletion.error.is_none();
        report(deletion);
        if !is_gone {
            bail!("stopped, because {} has to go before the rest", describe(object));
        }
    }
    if let Some(controller) = &plan.controller {
        wait_until_pods_are_gone(client, controller, limit).await?;
    }
    for object in plan.tenants.iter().chain(&plan.others) {
        report(delete(client, object).await);
    }
    Ok(())
}

/// Returns what would be deleted.
pub(crate) fn dry_run(plan: &Plan) -> Vec<Deletion> {
    plan.objects().map(|object| deletion(object, None)).collect()
}

async fn delete(client: &Client, object: &Value) -> Deletion {
    let metadata = &object["metadata"];
    // An object that was created again meanwhile is not deleted.
    let uid = metadata["uid"].as_str().map(str::to_owned);
    let preconditions = Some(Preconditions { uid, resource_version: None });
    // Deleted in the foreground, a Deployment exists until its pods are gone, so a second run waits, too.
    let is_deployment = object["kind"] == DEPLOYMENTS.name;
    let propagation = if is_deployment { DeleteParams::foreground() } else { DeleteParams::background() };
    let parameters = DeleteParams { preconditions, ..propagation };
    let name = metadata["name"].as_str().unwrap_or_default();
    match api_of(client, object).delete(name, &parameters).await {
        Ok(_) => deletion(object, None),
        Err(Error::Api(status)) if status.code == 404 => deletion(object, None),
        Err(error) => deletion(object, Some(api::describe_error(&error))),
    }
}

fn deletion(object: &Value, error: Option<String>) -> Deletion {
    let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
    let (namespace, name) = (text("namespace"), text("name").unwrap_or_default());
    Deletion { kind: kind_of(object).to_owned(), namespace, name, error }
}

/// Waits until no pod of a Deployment is left, so that it writes nothing any more.
async fn wait_until_pods_are_gone(client: &Client, deployment: &Value, limit: Duration) -> Result<()> {
    let namespace = deployment["metadata"]["namespace"].as_str();
    let selector = read::selector_of(&deployment["spec"]["selector"]["matchLabels"]);
    let selector = selector.with_context(|| format!("{} selects no pods", describe(deployment)))?;
    let began = Instant::now();
    loop {
        let left = read::list(client, PODS, namespace, &ListParams::default().labels(&selector)).await?;
        let Some(pod) = left.first() else { return Ok(()) };
        if began.elapsed() >= limit {
            bail!("pod {} still runs after {limit:?}; next: run this command again", place(pod));
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn api_of(client: &Client, object: &Value) -> Api<DynamicObject> {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind_of(object)));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Returns kind and name.
fn describe(object: &Value) -> String {
    format!("{} {}", kind_of(object), object["metadata"]["name"].as_str().unwrap_or_default())
}

fn kind_of(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// Returns `NAMESPACE/NAME`.
fn place(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

#[cfg(test)]
mod tests;
