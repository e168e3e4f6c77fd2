//! Defines a finding: a stable id, a severity, a message and what to do.

use clap::ValueEnum;
use serde::Serialize;

/// Has a paragraph for each id.
const DOCUMENT: &str = "docs/troubleshooting.md";

/// Tells how serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    Ok,
    /// Needs no action.
    Info,
    /// Needs action: something does not work.
    Problem,
}

/// Names the subject of a finding. The name is stable: scripts and documents refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Id {
    CaBundle,
    DryRun,
    ImageVolume,
    Installation,
    IstioInjector,
    KernelVersion,
    KubeletVersion,
    MeshClient,
    MeshPods,
    NamespaceLabel,
    NamespaceMesh,
    NamespaceOptIn,
    NativeSidecars,
    NodeProxy,
    PipelinesAccess,
    PodDecision,
    ProfilePolicy,
    PullSecret,
    Rights,
    ServerVersion,
    ShimImage,
    StuckPod,
    Tenancy,
    Unreadable,
    WebhookReplicas,
}

/// Returns a severity or an id as it is printed.
pub(super) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Holds one result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) id: Id,
    pub(crate) severity: Severity,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remediation: Option<String>,
    pub(crate) link: String,
}

impl Finding {
    pub(super) fn ok(id: Id, message: impl Into<String>) -> Self {
        Self::new(id, Severity::Ok, message.into(), None)
    }

    pub(super) fn info(id: Id, message: impl Into<String>) -> Self {
        Self::new(id, Severity::Info, message.into(), None)
    }

    pub(super) fn problem(id: Id, message: impl Into<String>, remediation: impl Into<String>) -> Self {
        Self::new(id, Severity::Problem, message.into(), Some(remediation.into()))
    }

    /// Adds something to do.
    pub(super) fn with_remediation(self, remediation: impl Into<String>) -> Self {
        Self { remediation: Some(remediation.into()), ..self }
    }

    fn new(id: Id, severity: Severity, message: String, remediation: Option<String>) -> Self {
        Self { id, severity, message, remediation, link: format!("{DOCUMENT}#{}", name(&id)) }
    }
}

/// Returns true if none of the findings is a problem.
pub(crate) fn is_healthy(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.severity != Severity::Problem)
}

/// Returns true if the installation could be read, and waiting would end none of the problems.
pub(crate) fn is_ready(findings: &[Finding]) -> bool {
    let is_known = findings.iter().any(|finding| finding.id == Id::Installation);
    let is_another =
        |finding: &Finding| matches!(finding.id, Id::StuckPod | Id::NamespaceMesh | Id::NamespaceLabel | Id::ShimImage);
    is_known && findings.iter().all(|finding| finding.severity != Severity::Problem || is_another(finding))
}

#[cfg(test)]
impl Finding {
    /// Returns severity, id and message in one line.
    pub(super) fn line(&self) -> String {
        format!("{} {}: {}", name(&self.severity), name(&self.id), self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TROUBLESHOOTING: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/troubleshooting.md"));

    #[test]
    fn every_id_has_its_heading_in_the_docs() {
        let headings = TROUBLESHOOTING.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
        let documented: Vec<String> = headings.map(str::to_owned).collect();
        let ids: Vec<String> = Id::value_variants().iter().map(name).collect();
        assert_eq!(documented, ids, "next: give each id a heading ### `ID`, in this order");
    }

    #[test]
    fn json_has_the_stable_fields() {
        let finding = Finding::problem(Id::StuckPod, "it is stuck", "end it");
        let expected = json!({
            "id": "stuck-pod", "severity": "problem", "message": "it is stuck", "remediation": "end it",
            "link": "docs/troubleshooting.md#stuck-pod",
        });
        assert_eq!(json!(finding), expected);
    }

    #[test]
    fn only_problems_are_unhealthy_and_stuck_pods_are_ready() {
        let [stuck, outside, mistyped, missing] =
            [Id::StuckPod, Id::NamespaceMesh, Id::NamespaceLabel, Id::NamespaceOptIn]
                .map(|id| Finding::problem(id, "", ""));
        let installed = Finding::ok(Id::Installation, "");
        let cases = [
            (vec![installed.clone(), Finding::info(Id::CaBundle, "")], true, true),
            (vec![Finding::info(Id::Unreadable, "")], true, false),
            (vec![installed.clone(), stuck.clone(), outside, mistyped], false, true),
            (vec![installed, stuck, missing], false, false),
        ];
        for (findings, healthy, ready) in cases {
            assert_eq!((is_healthy(&findings), is_ready(&findings)), (healthy, ready), "{findings:?}");
        }
    }
}
