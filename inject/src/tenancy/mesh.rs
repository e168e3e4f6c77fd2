//! The mesh for pods that run to completion. Kubeflow's own tools leave them outside, because they would not complete. Without
//! a sidecar they have no identity, and services of their own profile answer 403.

use contract::names::ISTIO_INJECT;
use json_patch::Patch;

use crate::facts::Facts;
use crate::facts::pod::Pod;
use crate::patch::PatchBuilder;
use crate::plan::reason_without_shim;
use crate::{Decision, Settings};

/// Labels a pod that runs to completion, so that Istio's injector adds its proxy. The label takes precedence over the
/// annotation, and the injector is called later. A label of the pod's own stands.
/// Deciding again on the patched pod changes nothing.
#[must_use]
pub fn join_mesh(pod: &Pod, settings: &Settings) -> Decision {
    if pod.label(ISTIO_INJECT).is_some() {
        return Decision::without_shim(Patch::default(), "the pod already sets sidecar.istio.io/inject");
    }
    let facts = Facts::of(pod);
    if facts.restart_policy.is_none() {
        return Decision::without_shim(Patch::default(), "the pod does not run to completion");
    }
    // With a proxy that nothing ends, the pod would not complete.
    if let Some(reason) = reason_without_shim(&facts, settings) {
        let warnings = vec![format!("istio-aux: pod not added to the mesh: {reason}")];
        return Decision { warnings, ..Decision::without_shim(Patch::default(), reason) };
    }
    let mut patch = PatchBuilder::new(pod);
    patch.label(ISTIO_INJECT, "true");
    Decision::without_shim(patch.finish(), "the pod runs to completion in the mesh")
}
