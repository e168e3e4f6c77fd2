//! Prints what `istio-aux check KIND/NAME` explains.

use std::fmt::Write;

use crate::explain::{Explanation, Verdict};
use crate::pods::{INJECTOR_LABELS, with_warnings};
use crate::text::one_line;

/// Separates a warning from what precedes it.
const WARNING: &str = "\n  warning: ";

/// Renders an explanation as text for a person.
pub(super) fn render(explanation: &Explanation) -> String {
    let Explanation { object, namespace, opted_in, opt_in, in_mesh, misplaced, pods, other_pods, now } = explanation;
    let mut text = format!("{object} in namespace {namespace}\n");
    let opted_in = match opted_in {
        Some(true) => "opted in",
        Some(false) => "not opted in",
        None => "opted in or not",
    };
    let _ = writeln!(text, "{opted_in}: {opt_in}");
    if let Some(in_mesh) = in_mesh {
        let selects = if *in_mesh { "selects" } else { "does not select" };
        let _ = write!(text, "Istio's injector {selects} the namespace");
        // A pod may ask for its proxy by a label of its own.
        let has_none = |verdict: &Verdict| matches!(verdict, Verdict::NotInjected { has_proxy: false, .. });
        if !in_mesh && now.iter().any(has_none) {
            let _ = write!(text, "; next: kubectl label namespace {namespace} {INJECTOR_LABELS}");
        }
        text.push('\n');
    }
    for annotation in misplaced {
        let _ = writeln!(
            text,
            "warning: its annotation {annotation} has no effect; next: move it to the pod template's metadata"
        );
    }
    for pod in pods {
        let _ = writeln!(text, "{}", pod.describe(WARNING));
    }
    if *other_pods > 0 {
        let _ = writeln!(text, "and {other_pods} more pods");
    }
    for verdict in now {
        let _ = writeln!(text, "a new pod: {}", would_be(verdict));
    }
    text
}

fn would_be(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Injected(decision) => decision.describe(WARNING),
        Verdict::NotInjected { reason, has_proxy, warnings } => {
            let proxy = if *has_proxy { "with istio-proxy and without the shim" } else { "without istio-proxy" };
            with_warnings(&format!("admitted {proxy}: {reason}"), warnings, WARNING)
        }
        Verdict::Rejected { message } => format!("rejected: {}", one_line(message)),
        Verdict::Unasked { reason, decision } => {
            format!("{} (without a dry run: {})", decision.describe(WARNING), one_line(reason))
        }
        Verdict::Unknown { reason } => format!("unknown: {}", one_line(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::{Decision, ExplainedPod};

    #[test]
    fn explanation_is_printed_line_by_line() {
        let decision = |warnings: &[&str]| Decision {
            mode: "native".to_owned(),
            reason: "because".to_owned(),
            waits_for: Vec::new(),
            warnings: warnings.iter().map(|warning| (*warning).to_owned()).collect(),
        };
        let pod = |name: &str, decision, unchanged: Option<&str>| ExplainedPod {
            name: name.to_owned(),
            phase: "Running".to_owned(),
            decision,
            unchanged: unchanged.map(str::to_owned),
            run_on: Vec::new(),
        };
        let explanation = Explanation {
            other_pods: 3,
            object: "job/hello".to_owned(),
            namespace: "team".to_owned(),
            opted_in: Some(true),
            opt_in: "its namespace has the label x=enabled".to_owned(),
            in_mesh: Some(false),
            misplaced: vec!["istio-aux.io/mode".to_owned()],
            pods: vec![pod("a", Some(decision(&[])), None), pod("b", None, Some("it opted out"))],
            now: vec![
                Verdict::Injected(decision(&["no container mian\nok       all is well"])),
                Verdict::NotInjected { reason: "it opted out".to_owned(), has_proxy: false, warnings: Vec::new() },
                Verdict::Rejected { message: "exceeded quota".to_owned() },
                Verdict::Unasked { reason: "no rights".to_owned(), decision: decision(&[]) },
                Verdict::Unknown { reason: "no answer".to_owned() },
            ],
        };
        insta::assert_snapshot!(render(&explanation));
    }
}
