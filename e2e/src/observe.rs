//! Reading an object's status the way an operator does.

use contract::names::{PROXY_CONTAINER, SHIM_CONTAINER, SHIM_LABEL};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

/// Returns true if an object of any kind has a condition of this type that is true.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}

/// The exit code that containerd gives to a container of which it knows nothing.
const LOST: i32 = 255;
/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 137;

/// How a shim ended, by its termination message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// The exit codes that it has seen, such as `main=0 metrics=?`.
    pub codes: &'a str,
    /// How the end was known: `exit`, `kubelet` or `none`.
    pub known_by: &'a str,
    /// The endpoint that accepted the request to quit, or `none`.
    pub asked: &'a str,
}

/// A pod's status.
#[derive(Debug, Clone, Copy)]
pub struct PodView<'a>(pub &'a Pod);

impl<'a> PodView<'a> {
    /// Returns the phase: Pending, Running, Succeeded or Failed.
    pub fn phase(self) -> &'a str {
        self.0.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
    }

    /// Returns the phase; `None` before it is final.
    pub fn final_phase(self) -> Option<String> {
        Some(self.phase()).filter(|phase| ["Succeeded", "Failed"].contains(phase)).map(str::to_owned)
    }

    /// Returns the status of a container, regular or init.
    pub fn container(self, name: &str) -> Option<&'a ContainerStatus> {
        self.containers().find(|status| status.name == name)
    }

    fn containers(self) -> impl Iterator<Item = &'a ContainerStatus> {
        let status = self.0.status.as_ref();
        let regular = status.and_then(|status| status.container_statuses.as_ref());
        let init = status.and_then(|status| status.init_container_statuses.as_ref());
        regular.into_iter().chain(init).flatten()
    }

    /// Returns how a container ended; `None` before it has.
    pub fn terminated(self, container: &str) -> Option<&'a ContainerStateTerminated> {
        self.container(container)?.state.as_ref()?.terminated.as_ref()
    }

    /// Returns the exit code of a container that has ended.
    pub fn exit_code(self, container: &str) -> Option<i32> {
        self.terminated(container).map(|terminated| terminated.exit_code)
    }

    /// Returns the time at which a container ended.
    pub fn ended_at(self, container: &str) -> Option<&'a Time> {
        self.terminated(container)?.finished_at.as_ref()
    }

    /// Returns true if a container runs and is ready.
    pub fn is_ready(self, container: &str) -> bool {
        self.container(container).is_some_and(|status| status.ready)
    }

    /// Returns true if a container runs, ready or not.
    pub fn runs(self, container: &str) -> bool {
        self.container(container)
            .is_some_and(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
    }

    /// Returns the reason for which a container waits.
    pub fn waits_for(self, container: &str) -> Option<&'a str> {
        self.container(container)?.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
    }

    /// Returns how often a container was restarted.
    pub fn restarts(self, container: &str) -> Option<i32> {
        self.container(container).map(|status| status.restart_count)
    }

    /// Returns how often the container with the shim was restarted: `istio-proxy` where the pod has no `aux-shim`.
    pub fn restarts_of_shim(self) -> i32 {
        let restarts = self.restarts(SHIM_CONTAINER).or_else(|| self.restarts(PROXY_CONTAINER));
        restarts.unwrap_or_else(|| panic!("no container with the shim: {}", self.in_a_line()))
    }

    /// Returns the exit code with which a container ended before its last restart.
    pub fn exit_code_before_restart(self, container: &str) -> Option<i32> {
        Some(self.container(container)?.last_state.as_ref()?.terminated.as_ref()?.exit_code)
    }

    /// Returns true if a restart of containerd lost a container, now or before its last restart.
    pub fn was_lost(self, container: &str) -> bool {
        let states = self.container(container).into_iter().flat_map(|status| [&status.state, &status.last_state]);
        states.flatten().any(is_lost)
    }

    /// Returns true if a restart of containerd lost one of the containers and its exit code.
    pub fn has_lost_container(self) -> bool {
        self.containers().filter_map(|status| status.state.as_ref()).any(is_lost)
    }

    /// Returns true if the payload has ended with 0 while the proxy runs on, which kubectl shows as `NotReady 1/2`.
    pub fn is_stuck(self, payload: &str) -> bool {
        self.phase() == "Running" && self.exit_code(payload) == Some(0) && self.is_ready(PROXY_CONTAINER)
    }

    /// Returns true if the pod has the shim in any mode: by its label, its container, or a command that it runs.
    pub fn has_shim(self) -> bool {
        let spec = serde_json::to_string(&self.0.spec).expect("a pod is JSON");
        self.shim_mode().is_some() || spec.contains(SHIM_CONTAINER)
    }

    /// Returns the mode in which the webhook added the shim.
    pub fn shim_mode(self) -> Option<&'a str> {
        self.0.metadata.labels.as_ref()?.get(SHIM_LABEL).map(String::as_str)
    }

    /// Returns how the pod's shim ended; `None` before it has.
    pub fn outcome(self) -> Option<Outcome<'a>> {
        let ends = [SHIM_CONTAINER, PROXY_CONTAINER].into_iter().filter_map(|name| self.terminated(name));
        let mut messages = ends.filter_map(|terminated| terminated.message.as_deref());
        messages.find_map(|message| {
            let (codes, rest) = message.trim_end().strip_prefix("exit codes: ")?.split_once("; known by: ")?;
            let (known_by, asked) = rest.split_once("; asked: ")?;
            Some(Outcome { codes, known_by, asked })
        })
    }

    /// Returns the image of a regular container.
    pub fn image(self, container: &str) -> Option<&'a str> {
        let containers = &self.0.spec.as_ref()?.containers;
        containers.iter().find(|other| other.name == container)?.image.as_deref()
    }

    /// Returns the names of the containers that have a status.
    pub fn container_names(self) -> impl Iterator<Item = &'a str> {
        self.containers().map(|status| status.name.as_str())
    }

    /// Returns an annotation of the pod.
    pub fn annotation(self, key: &str) -> Option<&'a str> {
        self.0.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns name, phase and containers in a line.
    pub fn in_a_line(self) -> String {
        let name = self.0.metadata.name.as_deref().unwrap_or("");
        let containers: Vec<String> = self.containers().map(describe).collect();
        format!("{name} {}: {}", self.phase(), containers.join(", "))
    }
}

/// What containerd says of a start that its own end interrupted.
const INTERRUPTED_STARTS: [&str; 2] = ["context canceled", "failed to start shim: start failed: : signal: killed"];

/// Returns true if containerd no longer knows a container, or was ended while it started it.
fn is_lost(state: &ContainerState) -> bool {
    let is_interrupted = |message: &String| {
        // containerd 1 ends each message so.
        let message = message.strip_suffix(": unknown").unwrap_or(message);
        INTERRUPTED_STARTS.iter().any(|end| message.ends_with(end))
    };
    state.terminated.as_ref().is_some_and(|terminated| {
        // Killed before containerd had answered that it runs.
        let never_started = terminated.started_at.as_ref().is_some_and(|time| time.0.as_second() == 0);
        terminated.exit_code == LOST
            || (terminated.exit_code == KILLED && never_started)
            || terminated.message.as_ref().is_some_and(is_interrupted)
    })
}

fn describe(status: &ContainerStatus) -> String {
    let ended = |terminated: &ContainerStateTerminated| {
        let message = terminated.message.as_deref().map(|text| format!(" ({})", text.trim())).unwrap_or_default();
        format!("ended with {}{message}", terminated.exit_code)
    };
    let state = status.state.as_ref();
    let now = if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
        ended(terminated)
    } else if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        format!("waits ({})", waiting.reason.as_deref().unwrap_or("no reason"))
    } else if status.ready {
        "ready".to_owned()
    } else {
        "runs, not ready".to_owned()
    };
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let before = last.map(|terminated| format!(", before it {}", ended(terminated))).unwrap_or_default();
    format!("{} {now}, {} restarts{before}", status.name, status.restart_count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn outcome_is_read_of_the_termination_message() {
        let message = "exit codes: main=0 metrics=?; known by: kubelet; asked: http://127.0.0.1:15020/quitquitquit\n";
        let ended = json!({"name": "aux-shim", "state": {"terminated": {"exitCode": 0, "message": message}}});
        let pod = |status: Value| serde_json::from_value::<Pod>(json!({"status": {"initContainerStatuses": [status]}}));
        let asked = "http://127.0.0.1:15020/quitquitquit";
        let expected = Outcome { codes: "main=0 metrics=?", known_by: "kubelet", asked };
        assert_eq!(PodView(&pod(complete(ended)).unwrap()).outcome(), Some(expected));
        let running = json!({"name": "aux-shim", "state": {"running": {}}});
        assert_eq!(PodView(&pod(complete(running)).unwrap()).outcome(), None);
    }

    /// Adds what a container's status must have.
    fn complete(mut status: Value) -> Value {
        json_patch::merge(&mut status, &json!({"image": "", "imageID": "", "ready": false, "restartCount": 0}));
        status
    }

    #[test]
    fn container_killed_before_it_ran_is_lost() {
        let killed = |started: &str| {
            let state = json!({"terminated": {"exitCode": 137, "startedAt": started}});
            is_lost(&serde_json::from_value(state).unwrap())
        };
        assert!(killed("1970-01-01T00:00:00Z"));
        assert!(!killed("2026-11-25T09:57:49Z"));
    }

    #[test]
    fn start_interrupted_by_containerds_end_is_lost() {
        let cases = [
            (255, "", true),
            (128, "failed to start containerd task \"x\": context canceled: unknown", true),
            (128, "failed to create containerd task: failed to create shim task: context canceled", true),
            (128, "failed to create containerd task: failed to get task pid: context canceled", true),
            (
                128,
                "failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown",
                true,
            ),
            (
                128,
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: \
                 unable to start container process: exec: \"/no/such/command\": no such file or directory: unknown",
                false,
            ),
            (128, "failed to create containerd task: failed to mount rootfs component: no space left", false),
            (1, "", false),
            (0, "", false),
        ];
        for (exit_code, message, expected) in cases {
            let terminated = ContainerStateTerminated {
                exit_code,
                message: Some(message.to_owned()),
                ..ContainerStateTerminated::default()
            };
            let state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
            assert_eq!(is_lost(&state), expected, "{exit_code} {message}");
        }
    }
}
