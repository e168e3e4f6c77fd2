//! Parses `KIND/NAME` as kubectl does, for the kinds with a pod template.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use contract::kind::{DEPLOYMENTS, Kind, PODS};
use serde_json::Value;

pub(super) const JOBS: Kind = Kind::new("batch", "v1", "Job", "jobs");
pub(super) const KUBEFLOW: &str = "kubeflow.org";
const KINDS: [(&[&str], Kind); 15] = [
    (&["po"], PODS),
    (&[], JOBS),
    (&["cj"], Kind::new("batch", "v1", "CronJob", "cronjobs")),
    (&["deploy"], DEPLOYMENTS),
    (&["sts"], Kind::new("apps", "v1", "StatefulSet", "statefulsets")),
    (&["ds"], Kind::new("apps", "v1", "DaemonSet", "daemonsets")),
    (&["rs"], Kind::new("apps", "v1", "ReplicaSet", "replicasets")),
    (&["rc"], Kind::new("", "v1", "ReplicationController", "replicationcontrollers")),
    (&[], Kind::new("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")),
    (&[], Kind::new(KUBEFLOW, "v1", "TFJob", "tfjobs")),
    (&[], Kind::new(KUBEFLOW, "v1", "PyTorchJob", "pytorchjobs")),
    (&[], Kind::new(KUBEFLOW, "v1", "MPIJob", "mpijobs")),
    // The MPI operator's own.
    (&[], Kind::new(KUBEFLOW, "v2beta1", "MPIJob", "mpijobs")),
    (&[], Kind::new(KUBEFLOW, "v1", "XGBoostJob", "xgboostjobs")),
    (&[], Kind::new(KUBEFLOW, "v1", "PaddleJob", "paddlejobs")),
];

/// Names an object of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

impl Target {
    /// Returns the versions of its kind.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        KINDS.iter().map(|(_, kind)| *kind).filter(|kind| (kind.group, kind.name) == (self.kind.group, self.kind.name))
    }

    /// Returns the controller of a pod, if its kind is known.
    pub(crate) fn owner_of(pod: &Value) -> Option<Self> {
        let mut owners = pod["metadata"]["ownerReferences"].as_array()?.iter();
        let owner = owners.find(|owner| owner["controller"] == true)?;
        let is_it = |kind: &&Kind| owner["kind"] == kind.name && owner["apiVersion"] == kind.api_version();
        let kind = KINDS.iter().map(|(_, kind)| kind).find(is_it)?;
        Some(Self { kind: *kind, name: owner["name"].as_str()?.to_owned() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.name.to_ascii_lowercase(), self.name)
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/'));
        let (kind, name) = parts.context("takes KIND/NAME, such as pod/hello or job/hello")?;
        let kind = kind.to_ascii_lowercase();
        // As in kubectl's `-o name`: job.batch, or with its version.
        let (resource, suffix) =
            kind.split_once('.').map_or((&*kind, None), |(resource, suffix)| (resource, Some(suffix)));
        let is_it = |(short, known): &&(&[&str], Kind)| {
            let names_it =
                known.name.eq_ignore_ascii_case(resource) || known.plural == resource || short.contains(&resource);
            let in_version = format!("{}.{}", known.version, known.group);
            names_it && suffix.is_none_or(|suffix| suffix == known.group || suffix == in_version)
        };
        let known = KINDS.iter().find(is_it).map(|(_, known)| *known);
        let kind = known.with_context(|| format!("unknown kind {kind:?}; it takes {}", kinds()))?;
        Ok(Self { kind, name: name.to_owned() })
    }
}

fn kinds() -> String {
    let mut names: Vec<_> = KINDS.iter().map(|(_, kind)| kind.name.to_ascii_lowercase()).collect();
    names.dedup();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kind_is_parsed_by_kubectls_names() {
        for text in ["pod/a", "po/a", "pods/a", "Pod/a"] {
            assert_eq!(text.parse::<Target>().unwrap(), Target { kind: PODS, name: "a".to_owned() }, "{text}");
        }
        for text in ["job.batch/a", "jobs.v1.batch/a", "Job.batch/a"] {
            assert_eq!(text.parse::<Target>().unwrap().kind, JOBS, "{text}");
        }
        assert_eq!("mpijob.v2beta1.kubeflow.org/a".parse::<Target>().unwrap().kind.version, "v2beta1");
        assert!("job.other.io/a".parse::<Target>().is_err());
        assert_eq!("cj/a".parse::<Target>().unwrap().to_string(), "cronjob/a");
        assert_eq!("PyTorchJob/a".parse::<Target>().unwrap().kind.plural, "pytorchjobs");
    }

    #[test]
    fn owner_is_the_pods_controller() {
        let cases = [
            ("batch/v1", "Job", true, Some("job/a")),
            ("batch/v1", "Job", false, None),
            ("other.io/v1", "Job", true, None),
            ("v1", "Node", true, None),
        ];
        for (api_version, kind, controller, expected) in cases {
            let owner = json!({"apiVersion": api_version, "kind": kind, "name": "a", "controller": controller});
            let owner = Target::owner_of(&json!({"metadata": {"ownerReferences": [owner]}}));
            assert_eq!(owner.map(|owner| owner.to_string()).as_deref(), expected, "{api_version} {kind} {controller}");
        }
        assert_eq!(Target::owner_of(&json!({"metadata": {}})), None);
    }

    #[test]
    fn invalid_target_is_rejected() {
        for text in ["a", "pod/", "pod/a/b"] {
            assert!(text.parse::<Target>().unwrap_err().to_string().starts_with("takes KIND/NAME"), "{text}");
        }
        assert!("service/a".parse::<Target>().unwrap_err().to_string().contains("cronjob"));
    }
}
