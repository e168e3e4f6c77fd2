//! The facts about a pod, read in one pass. Plans are made from them, and patches are rendered from plans.

mod bounded;
mod container;
pub mod pod;
mod sidecar;

use contract::args::{REPORT_ONLY, SUPERVISE};
use contract::names::{
    AIRFLOW_XCOM_CONTAINER, ARGO_WORKFLOW_LABEL, KATIB_TRIAL_LABEL, PROXY_CONTAINER, SHIM_CONTAINER,
};
use contract::policy::RestartPolicy;

use self::pod::{Container, Pod};
pub use self::sidecar::Sidecar;
use crate::Mode;

/// The facts that decide about a pod.
#[derive(Debug)]
pub(crate) struct Facts<'p> {
    pub(crate) pod: &'p Pod,
    pub(crate) sidecar: Sidecar,
    /// The regular containers but the proxy, in their order.
    pub(crate) payload: Vec<&'p Container>,
    /// The restart policy of a pod that runs to completion.
    pub(crate) restart_policy: Option<RestartPolicy>,
    /// The mode of a shim that is already injected. It is read from the containers: annotations may have been copied from another
    /// pod.
    pub(crate) present: Option<Mode>,
    pub(crate) is_katib_trial: bool,
    pub(crate) is_argo_step: bool,
    /// True with Airflow's `XCom` sidecar. Airflow signals all shells of its user, in a shared PID namespace its own first
    /// (`extract_xcom_kill` in its `pod_manager.py`).
    pub(crate) has_airflow_xcom: bool,
}

impl<'p> Facts<'p> {
    pub(crate) fn of(pod: &'p Pod) -> Self {
        let init = || pod.spec.init_containers.iter().flatten();
        let native_shim = init().find(|container| container.is_named(SHIM_CONTAINER));
        let parent = pod.spec.containers.iter().find(|container| container.is_run_by_shim(SUPERVISE));
        let shim = native_shim.or(parent);
        let present = shim.map(|shim| match native_shim {
            _ if shim.has_word(&format!("--{REPORT_ONLY}")) => Mode::Status,
            Some(_) => Mode::Native,
            None => Mode::Proxy,
        });
        Self {
            pod,
            sidecar: Sidecar::of(pod),
            payload: pod.spec.containers.iter().filter(|container| !container.is_named(PROXY_CONTAINER)).collect(),
            restart_policy: pod.spec.restart_policy(),
            present,
            is_katib_trial: pod.label(KATIB_TRIAL_LABEL).is_some(),
            has_airflow_xcom: pod.spec.containers.iter().any(|container| container.is_named(AIRFLOW_XCOM_CONTAINER)),
            is_argo_step: pod.label(ARGO_WORKFLOW_LABEL).is_some(),
        }
    }

    /// Returns the proxy, if it is a regular container that Istio's injector has rendered, and its index.
    pub(crate) fn classic_proxy(&self) -> Option<(usize, &'p Container)> {
        match self.sidecar {
            Sidecar::Classic { index } => Some((index, &self.pod.spec.containers[index])),
            _ => None,
        }
    }
}
