//! Argo's controller ends what still runs beside a step's main container by `kill -15 1` in each container. In a shared PID
//! namespace PID 1 is the pod's pause, and the whole pod could end in the middle of an upload.

use contract::names::{ARGO_KILL_PROXY_ANNOTATION, ARGO_WORKFLOW_LABEL};

use super::patch::PatchWriter;
use super::pod::Pod;

/// What it is to run in istio-proxy instead: the proxy is still needed for the upload (argo-workflows#12919).
const NOTHING: &str = r#"["pilot-agent","version"]"#;

/// Whether a pod is a step of a workflow.
pub(super) fn is_step(pod: &Pod) -> bool {
    pod.label(ARGO_WORKFLOW_LABEL).is_some()
}

/// Keeps the controller from ending the proxy, unless the user said how it is to.
pub(super) fn leave_the_proxy_to_us(pod: &Pod, write: &mut PatchWriter) {
    if pod.annotation(ARGO_KILL_PROXY_ANNOTATION).is_none() {
        write.annotation(ARGO_KILL_PROXY_ANNOTATION, NOTHING);
    }
}
