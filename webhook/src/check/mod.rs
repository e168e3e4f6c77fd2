//! What is wrong in a cluster, and what would happen: read with the user's own rights, judged, told.

mod findings;
mod probe;
mod snapshot;

use std::io::Write;

use inject::Settings;
use kube::Client;
use serde::Serialize;

use crate::certificates::pair::now;

/// How serious something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Worth to know.
    Note,
    /// To be mended.
    Problem,
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What was found, in one line.
    pub(crate) what: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

impl Finding {
    fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), next: None }
    }

    fn note(what: impl Into<String>) -> Self {
        Self { level: Level::Note, what: what.into(), next: None }
    }

    fn problem(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { level: Level::Problem, what: what.into(), next: Some(next.into()) }
    }
}

/// What to look at.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// One namespace, and what would happen to each of its pods; else all.
    pub(crate) namespace: Option<String>,
    /// Where to run the shim from an image volume on each kind of node.
    pub(crate) probe_in: Option<String>,
    /// What the webhook would go by.
    pub(crate) settings: Settings,
}

/// Looks, and returns what was found.
pub(crate) async fn run(client: &Client, scope: &Scope) -> Result<Vec<Finding>, String> {
    let snapshot = snapshot::take(client, scope.namespace.as_deref()).await?;
    let mut found = findings::of(&snapshot, scope.namespace.as_deref(), &scope.settings, now());
    if let Some(namespace) = &scope.probe_in {
        found.extend(probe::run(client, namespace, &snapshot.nodes, &scope.settings).await);
    }
    Ok(found)
}

/// Whether nothing is to be mended.
pub(crate) fn is_well(found: &[Finding]) -> bool {
    found.iter().all(|finding| finding.level != Level::Problem)
}

/// Prints findings for a person.
pub(crate) fn print(found: &[Finding], to: &mut impl Write) -> std::io::Result<()> {
    for Finding { level, what, next } in found {
        let level = match level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "problem",
        };
        writeln!(to, "{level:<8} {what}")?;
        if let Some(next) = next {
            writeln!(to, "{:<8} next: {next}", "")?;
        }
    }
    Ok(())
}
