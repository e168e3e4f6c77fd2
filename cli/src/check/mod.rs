//! Checks a cluster with the caller's own rights: reads its state, judges it, and asks the server for dry runs.

mod attempt;
mod finding;
mod findings;
mod pods;
mod preflight;
mod probe;
mod pull_secrets;
mod snapshot;
mod tenant;

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use contract::version::Version;
use inject::Settings;
use inject::args::{default_settings, has_default_image};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::time::sleep;

use self::finding::Severity;
pub(crate) use self::finding::{Finding, Id, is_healthy, is_ready};
pub(crate) use self::snapshot::{
    CONFIGURATION_NAME, NODE_AGENT, SHIM_CONFIGURATION_NAME, UNFINISHED, note, webhook_service,
};
use crate::text::one_line;

/// Is the time between two checks while readiness is awaited.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Selects what to check.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// Limits the check to a namespace, and adds the decision for each of its pods.
    pub(crate) namespace: Option<String>,
    /// Selects pods by labels; empty for all.
    pub(crate) selector: String,
    /// Runs the shim from an image volume on each kind of node, in this namespace.
    pub(crate) probe_in: Option<String>,
    /// Are those to check with, in place of the installed webhook's.
    pub(crate) settings: Option<Settings>,
}

/// Checks a cluster in which istio-aux is installed.
pub(crate) async fn run(client: &Client, scope: &Scope) -> Result<Vec<Finding>> {
    let mut snapshot = snapshot::take_without_pods(client).await?;
    let installed = snapshot.webhooks.iter().find_map(|webhook| webhook.settings.clone());
    if scope.probe_in.is_some() && lacks_image(scope.settings.as_ref(), installed.as_ref()) {
        bail!("--probe runs the shim's image: give --shim-image");
    }
    let mut settings = scope.settings.clone().or(installed).unwrap_or_else(default_settings);
    // A server without native sidecars gets the shim in another mode.
    settings.native_sidecars &= snapshot.server.is_none_or(Version::has_native_sidecars);
    snapshot.add_pods(client, scope, &settings).await?;
    let mut findings = findings::of(&snapshot, Timestamp::now().as_second());
    findings.extend(attempt::run(client, &snapshot, scope.namespace.as_deref(), &settings).await);
    findings
        .extend(pull_secrets::run(client, &snapshot.namespaces, &snapshot.selectors(), &settings.pull_secrets).await);
    if let Some(namespace) = &scope.probe_in {
        findings.extend(probe::run(client, namespace, &snapshot.nodes, &settings).await);
    }
    Ok(findings)
}

/// Returns true if the shim's image would be the default, which no registry has, unless the installed webhook uses it.
fn lacks_image(given: Option<&Settings>, installed: Option<&Settings>) -> bool {
    given.or(installed).is_none_or(has_default_image) && !installed.is_some_and(has_default_image)
}

/// Checks a cluster before an installation.
pub(crate) async fn before_installation(client: &Client) -> Result<Vec<Finding>> {
    let snapshot = snapshot::take_without_pods(client).await?;
    Ok(preflight::run(client, &snapshot).await)
}

/// Checks a cluster until istio-aux is ready, or the time is over, and reports progress on stderr.
pub(crate) async fn wait_until_ready(client: &Client, scope: &Scope, timeout: Duration) -> Result<Vec<Finding>> {
    let began = Instant::now();
    let mut reported = String::new();
    loop {
        let checked = run(client, scope).await;
        let progress = match &checked {
            Ok(findings) if is_ready(findings) => return checked,
            Ok(findings) => first_problem(findings),
            Err(error) => api::describe_error(error.as_ref()),
        };
        if began.elapsed() + CHECK_INTERVAL > timeout {
            return checked;
        }
        if progress != reported {
            eprintln!("istio-aux: waiting: {progress}");
            reported = progress;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Returns the first problem and the number of the others, or the first thing that cannot be read.
fn first_problem(findings: &[Finding]) -> String {
    let problems: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Problem).collect();
    let first = problems.first().copied().or_else(|| findings.iter().find(|finding| finding.id == Id::Unreadable));
    let first = first.map(|finding| finding.message.clone()).unwrap_or_default();
    match problems.len() {
        0 | 1 => first,
        all => format!("{first} (and {} more)", all - 1),
    }
}

/// Findings as text for a person. Messages have words of pods, which their owners choose.
pub(crate) fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { severity, message, remediation, link, .. } in findings {
        let _ = writeln!(text, "{:<8} {}", finding::name(severity), one_line(message));
        if let Some(remediation) = remediation {
            let _ = writeln!(text, "{:<8} next: {}", "", one_line(remediation));
        }
        if *severity == Severity::Problem {
            let _ = writeln!(text, "{:<8} see:  {link}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::fixtures::stuck_pod;
    use api::fake::{Answer, client};

    #[test]
    fn probe_wants_an_image() {
        let [other, default] = [&Settings::new("r/shim:1"), &default_settings()];
        let with_secret = &Settings { pull_secrets: vec!["pull".to_owned()], ..default_settings() };
        let cases = [
            (None, None, true),
            (Some(other), None, false),
            (None, Some(other), false),
            (Some(with_secret), None, true),
            (Some(with_secret), Some(other), true),
            (None, Some(default), false),
        ];
        for (given, installed, lacks) in cases {
            assert_eq!(lacks_image(given, installed), lacks, "{given:?} {installed:?}");
        }
    }

    #[test]
    fn findings_are_printed_with_step_and_link() {
        let findings = [
            Finding::ok(Id::ServerVersion, "Kubernetes 1.34"),
            Finding::info(Id::Unreadable, "cannot read nodes"),
            Finding::problem(Id::StuckPod, "pod a/b is stuck", "istio-aux finish -n a b"),
            Finding::ok(Id::PodDecision, "pod a/c: mode \u{1b}[2J\nok       the webhook is installed"),
        ];
        insta::assert_snapshot!(render(&findings), @r"
        ok       Kubernetes 1.34
        info     cannot read nodes
        problem  pod a/b is stuck
                 next: istio-aux finish -n a b
                 see:  docs/troubleshooting.md#stuck-pod
        ok       pod a/c: mode �[2J�ok       the webhook is installed
        ");
    }

    #[tokio::test]
    async fn wait_of_zero_returns_one_check() {
        let info = serde_json::json!({"major": "1", "minor": "34", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        let empty = |request: &str| Answer::list(request, &[]);
        let (client, requests) = client([
            Answer::ok("GET /version", info),
            empty("GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations?"),
            Answer::list("GET /api/v1/pods?", &[stuck_pod()]),
            empty("GET /api/v1"),
        ]);
        let settings = Settings::new("shim:1");
        let scope = Scope { namespace: None, selector: "app=a".to_owned(), probe_in: None, settings: Some(settings) };
        let findings = wait_until_ready(&client, &scope, Duration::ZERO).await.unwrap();
        let missing = "istio-aux is not installed: there is no MutatingWebhookConfiguration istio-aux";
        assert_eq!(first_problem(&findings), format!("{missing} (and 1 more)"));
        assert!(findings.iter().all(|finding| finding.id != Id::PodDecision), "each pod's is for one namespace");
        assert_eq!(requests.all().iter().filter(|line| *line == "GET /version").count(), 1);
        let pods = requests.all().into_iter().find(|line| line.starts_with("GET /api/v1/pods?")).unwrap();
        assert!(pods.contains("labelSelector=app%3Da") && pods.contains("fieldSelector=status.phase"), "{pods}");
    }

    #[test]
    fn progress_shows_first_problem_and_count() {
        let problem = |message: &str| Finding::problem(Id::CaBundle, message, "");
        assert_eq!(first_problem(&[Finding::ok(Id::CaBundle, "ok"), problem("one")]), "one");
        assert_eq!(first_problem(&[Finding::info(Id::Unreadable, "no rights")]), "no rights");
        assert_eq!(first_problem(&[problem("one"), problem("two"), problem("three")]), "one (and 2 more)");
    }
}
