//! Explains why a workload is injected or not, by the object, its namespace, its pods, and a dry run of a new pod.

mod target;

use anyhow::{Context as _, Result, anyhow};
use api::describe_error;
use contract::kind::{NAMESPACES, PODS};
use inject::Settings;
use kube::Client;
use kube::api::ListParams;
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use self::target::Target;
use self::target::{JOBS, KUBEFLOW};
use crate::dry_run::{DryRun, dry_run_pod};
use crate::pods::{
    Decision, ExplainedPod, OptIn, Selectors, decide_now, is_rendered, pods_of, recorded, why_unchanged,
};
use crate::read::{self, selector_of};

const ANNOTATION_PREFIX: &str = "istio-aux.io/";
/// Limits the pods of a workload that are listed.
const PODS_LIMIT: usize = 20;

/// Explains an object's pods.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub(crate) object: String,
    pub(crate) namespace: String,
    /// Is true if the API server calls the webhook for the object's pods; `None` if the namespace cannot be read.
    pub(crate) opted_in: Option<bool>,
    /// Names the label, or says why it is not known.
    pub(crate) opt_in: String,
    /// Is true if Istio's injector selects the namespace; `None` if the namespace cannot be read.
    pub(crate) in_mesh: Option<bool>,
    /// Names annotations of the object itself that only its pods may have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) misplaced: Vec<String>,
    pub(crate) pods: Vec<ExplainedPod>,
    /// Counts further pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) other_pods: usize,
    pub(crate) now: Vec<Verdict>,
}

/// Tells what would become of a new pod.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub(crate) enum Verdict {
    /// Admitted with this decision.
    Injected(Decision),
    /// Admitted, and the webhook would record nothing.
    NotInjected {
        reason: String,
        /// Is true if Istio's injector would add its proxy.
        has_proxy: bool,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    /// Rejected with this message.
    Rejected { message: String },
    /// Decided here for the pod as it is, without a dry run.
    Unasked { reason: String, decision: Decision },
    /// Unknown for this reason.
    Unknown { reason: String },
}

/// Explains one object. `Err` if it cannot be read, or has no pod template.
pub(crate) async fn explain(
    client: &Client,
    namespace: &str,
    target: &Target,
    selectors: &Selectors,
    settings: &Settings,
) -> Result<Explanation> {
    let object = read::get_first(client, target.kinds(), Some(namespace), &target.name).await?;
    let object = object.with_context(|| format!("there is no {target} in namespace {namespace}"))?;
    let templates = templates(client, namespace, &object).await;
    let template = templates.first();
    let template = template.with_context(|| {
        format!("{target} has no pod template that istio-aux knows; next: istio-aux check pod/NAME")
    })?;
    let namespace_object = read::get(client, NAMESPACES, None, namespace).await;
    let namespace_object =
        namespace_object.and_then(|object| object.ok_or_else(|| anyhow!("there is no namespace {namespace}")));
    let opt_in = namespace_object.as_ref().map(|namespace| selectors.opt_in(namespace, template));
    let context = Context { client, namespace, namespace_object: namespace_object.as_ref().ok(), selectors, settings };
    let (pods, other_pods) =
        if target.kind == PODS { (vec![context.explained(&object)], 0) } else { context.pods(&object).await? };
    let mut now = Vec::new();
    // A pod with a shim cannot serve as a template.
    for template in templates.iter().filter(|template| !is_rendered(template) || recorded(template).is_none()) {
        now.push(context.verdict(template).await);
    }
    Ok(Explanation {
        object: target.to_string(),
        namespace: namespace.to_owned(),
        opted_in: opt_in.as_ref().ok().map(OptIn::is_in),
        opt_in: opt_in.map_or_else(|error| describe_error(error.as_ref()), OptIn::describe),
        in_mesh: namespace_object.as_ref().ok().map(|namespace| selectors.is_in_mesh(namespace)),
        misplaced: if target.kind == PODS { Vec::new() } else { misplaced(&object) },
        pods,
        other_pods,
        now,
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Returns istio-aux' annotations of an object that has a pod template, where they have no effect.
fn misplaced(object: &Value) -> Vec<String> {
    let metadata = [&object["metadata"], &object["spec"]["jobTemplate"]["metadata"]];
    let annotations = metadata.into_iter().filter_map(|metadata| metadata["annotations"].as_object()).flatten();
    annotations.map(|(key, _)| key.clone()).filter(|key| key.starts_with(ANNOTATION_PREFIX)).collect()
}

/// Returns the pod templates of an object. A pod has its controller's: a running pod contains what admission added.
async fn templates(client: &Client, namespace: &str, object: &Value) -> Vec<Value> {
    if let Some(owner) = Target::owner_of(object).filter(|_| object["kind"] == "Pod")
        && let Ok(Some(controller)) = read::get(client, owner.kind, Some(namespace), &owner.name).await
    {
        return pods_of(&controller);
    }
    pods_of(object)
}

/// Holds where an object is, and the settings for decisions.
struct Context<'a> {
    client: &'a Client,
    namespace: &'a str,
    /// Has the namespace's object, if it can be read.
    namespace_object: Option<&'a Value>,
    selectors: &'a Selectors,
    settings: &'a Settings,
}

impl Context<'_> {
    /// Explains the pods of a workload, and counts those over the limit.
    async fn pods(&self, object: &Value) -> Result<(Vec<ExplainedPod>, usize)> {
        let (mut pods, mut others) = (Vec::new(), 0);
        let Some(selector) = self.selector(object).await? else { return Ok((pods, others)) };
        let selection = ListParams::default().labels(&selector);
        read::for_each(self.client, PODS, Some(self.namespace), &selection, |pod| {
            if pods.len() < PODS_LIMIT {
                pods.push(self.explained(&pod));
            } else {
                others += 1;
            }
        })
        .await?;
        Ok((pods, others))
    }

    /// Returns a selector of the object's pods: its own, or of the label that its controller gives them; `None` if it has none.
    async fn selector(&self, object: &Value) -> Result<Option<String>> {
        let (kind, name) = (&object["kind"], object["metadata"]["name"].as_str().unwrap_or_default());
        Ok(match kind.as_str().unwrap_or_default() {
            "ReplicationController" => selector_of(&object["spec"]["selector"]),
            "JobSet" => Some(format!("jobset.sigs.k8s.io/jobset-name={name}")),
            _ if object["apiVersion"].as_str().is_some_and(|version| version.starts_with(KUBEFLOW)) => {
                Some(format!("training.kubeflow.org/job-name={name}"))
            }
            "CronJob" => {
                let uid = &object["metadata"]["uid"];
                let is_its = |job: &Value| {
                    let mut owners = job["metadata"]["ownerReferences"].as_array().into_iter().flatten();
                    owners.any(|owner| owner["uid"] == *uid)
                };
                let all = read::list(self.client, JOBS, Some(self.namespace), &ListParams::default()).await;
                let all = all.unwrap_or_else(|error| {
                    eprintln!("istio-aux: its pods are not listed: {}", describe_error(error.as_ref()));
                    Vec::new()
                });
                let jobs = all.iter().filter(|job| is_its(job));
                let names: Vec<_> = jobs.filter_map(|job| job["metadata"]["name"].as_str()).collect();
                (!names.is_empty()).then(|| format!("batch.kubernetes.io/job-name in ({})", names.join(",")))
            }
            _ => selector_of(&object["spec"]["selector"]["matchLabels"]),
        })
    }

    fn explained(&self, pod: &Value) -> ExplainedPod {
        ExplainedPod::of(pod, self.namespace_object, self.selectors, self.settings)
    }

    /// Asks by a dry run what would become of a pod of a template.
    async fn verdict(&self, template: &Value) -> Verdict {
        if is_rendered(template) {
            // Istio's injector would treat the proxy as its own, and a dry run would prove nothing.
            return self.unasked(template, "the pod has its proxy already".to_owned());
        }
        match dry_run_pod(self.client, self.namespace, &new_pod(template)).await {
            Ok(DryRun::Admitted { pod, warnings }) => {
                let Some(mut decision) = recorded(&pod) else {
                    let missed = "the webhook was not called, or did not answer";
                    let reason = why_unchanged(&pod, self.namespace_object, self.selectors, self.settings, missed);
                    return Verdict::NotInjected { reason, has_proxy: is_rendered(&pod), warnings };
                };
                for warning in warnings {
                    if !decision.warnings.contains(&warning) {
                        decision.warnings.push(warning);
                    }
                }
                Verdict::Injected(decision)
            }
            Ok(DryRun::Rejected(message)) => Verdict::Rejected { message },
            Ok(DryRun::Forbidden(reason)) => self.unasked(template, reason),
            Err(error) => self.unasked(template, describe_error(error.as_ref())),
        }
    }

    fn unasked(&self, template: &Value, reason: String) -> Verdict {
        match decide_now(template, self.settings) {
            Ok(decision) => Verdict::Unasked { reason, decision: decision.into() },
            Err(error) => Verdict::Unknown { reason: format!("{reason}; {}", describe_error(error.as_ref())) },
        }
    }
}

/// Returns a pod to create: the template's metadata and spec, without what belongs to a running pod.
fn new_pod(template: &Value) -> Value {
    let metadata = &template["metadata"];
    let mut spec = template["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.shift_remove("nodeName");
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": "istio-aux-why-", "labels": metadata["labels"], "annotations": metadata["annotations"],
        },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests;
