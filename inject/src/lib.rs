//! Decides what a pod gets: facts about the pod, a plan made from them, and the plan as a JSON Patch.
//!
//! The API server calls the webhook twice for most pods: before Istio's injector, when the annotation for the startup hold
//! still reaches the injector, and again after it, when the shim is added beside the proxy.
//!
//! [`decide`] is the decision, [`tenancy`] has those for Kubeflow's tenants, and [`review`] is the admission API around them.

#![forbid(unsafe_code)]

#[cfg(feature = "args")]
pub mod args;
mod ended;
mod entry;
mod facts;
mod membership;
mod mode;
mod node_proxy;
mod patch;
mod plan;
pub mod review;
mod settings;
pub mod tenancy;
mod text;

use json_patch::Patch;

pub use self::ended::{has_ended_for_good, report_ended};
pub use self::entry::Entry;
use self::facts::Facts;
pub use self::facts::{Sidecar, pod};
pub use self::membership::{join, stay_out};
pub use self::mode::Mode;
pub use self::node_proxy::{move_completing_pods_proxy_to_node, move_proxy_to_node};
use self::pod::Pod;
pub use self::settings::{Delivery, Hold, ParseQuantityError, PullPolicy, Settings, ShimResources, ShimUser};

/// A decision for a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The changes; empty where there are none.
    pub patch: Patch,
    /// The pod's mode once the patch is applied.
    pub mode: Mode,
    /// The reason, for the log and the status annotation.
    pub reason: &'static str,
    /// Warnings for the client that creates the pod.
    pub warnings: Vec<String>,
    /// The message for the client where the pod is denied.
    pub denial: Option<String>,
}

impl Decision {
    /// Returns a decision that adds no shim.
    fn without_shim(patch: Patch, reason: &'static str) -> Self {
        Self { patch, mode: Mode::Off, reason, warnings: Vec::new(), denial: None }
    }
}

/// Decides for a pod. Deciding again on the patched pod changes nothing.
#[must_use]
pub fn decide(pod: &Pod, settings: &Settings) -> Decision {
    let facts = Facts::of(pod);
    let plan = plan::plan(&facts, settings);
    let patch = patch::render(&plan, &facts, settings);
    Decision { patch, mode: plan.mode, reason: plan.reason, warnings: plan.warnings.into_vec(), denial: None }
}

/// Returns the pod after a decision, and asserts that deciding again changes nothing.
#[cfg(test)]
fn decided(decide: impl Fn(&Pod) -> Decision, mut pod: serde_json::Value) -> (serde_json::Value, Decision) {
    let decide = |pod: &serde_json::Value| decide(&serde_json::from_str(&pod.to_string()).unwrap());
    let decision = decide(&pod);
    json_patch::patch(&mut pod, &decision.patch).unwrap();
    let again = decide(&pod);
    assert!(again.patch.is_empty(), "{pod}: {:?}", again.patch);
    (pod, decision)
}
