//! Argo's controller ends what still runs beside a step's main container by `kill -15 1` in each container. In a shared
//! PID namespace PID 1 is the pod's pause, and the whole pod could end in the middle of an upload.

use contract::names::{ARGO_KILL_PROXY_ANNOTATION, ARGO_NOOP_COMMAND};

use super::{Change, Plan};
use crate::facts::Facts;

/// Keeps Argo's controller from ending the proxy of a step, unless the user has set how it does.
pub(super) fn disable_argo_proxy_kill(facts: &Facts, plan: &mut Plan) {
    if facts.is_argo_step && facts.pod.annotation(ARGO_KILL_PROXY_ANNOTATION).is_none() {
        plan.changes.push(Change::Annotation { key: ARGO_KILL_PROXY_ANNOTATION, value: ARGO_NOOP_COMMAND.to_owned() });
    }
}
