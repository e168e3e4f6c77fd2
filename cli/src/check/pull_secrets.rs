//! Checks that the Secrets with which nodes pull the shim's image are in the namespaces that opted in.

use std::pin::pin;

use api::{describe_error, objects};
use contract::kind::Kind;
use futures::{StreamExt, stream};
use kube::Client;
use serde_json::Value;

use super::finding::{Finding, Id};
use crate::pods::Selectors;

/// Limits the Secrets that are read at the same time.
const CONCURRENCY: usize = 16;
const SECRETS: Kind = Kind::new("", "v1", "Secret", "secrets");

/// Looks for each Secret in each namespace that is opted in.
pub(super) async fn run(
    client: &Client,
    namespaces: &[Value],
    selectors: &Selectors,
    secrets: &[String],
) -> Vec<Finding> {
    let (mut missing, mut unreadable) = (Vec::new(), Vec::new());
    let opted_in = namespaces.iter().filter(|namespace| selectors.opt_in_of_namespace(namespace).is_in());
    let names = opted_in.filter_map(|namespace| namespace["metadata"]["name"].as_str());
    let wanted = names.flat_map(|namespace| secrets.iter().map(move |secret| (namespace, secret)));
    let reads = stream::iter(wanted).map(async |(namespace, secret)| {
        // Reads no content.
        ((namespace, secret), objects(client, SECRETS, Some(namespace)).get_metadata_opt(secret).await)
    });
    let mut read = pin!(reads.buffered(CONCURRENCY));
    while let Some((wanted, found)) = read.next().await {
        match found {
            Ok(Some(_)) => {}
            Ok(None) => missing.push(wanted),
            Err(error) => unreadable.push(describe_error(&error)),
        }
    }
    let mut findings = Vec::new();
    if let Some(first) = unreadable.first() {
        let more =
            if unreadable.len() > 1 { format!(" (and {} more Secrets)", unreadable.len() - 1) } else { String::new() };
        findings.push(Finding::info(Id::Unreadable, format!("{first}{more}")));
    }
    findings.extend(missing.iter().map(|(namespace, secret)| {
        Finding::problem(
            Id::PullSecret,
            format!("namespace {namespace} lacks the Secret {secret}, with which nodes are to pull the shim's image"),
            format!("kubectl -n {namespace} create secret docker-registry {secret} …"),
        )
    }));
    if findings.is_empty() && !secrets.is_empty() {
        let message = format!("the namespaces that opted in have {}", secrets.join(", "));
        findings.push(Finding::ok(Id::PullSecret, message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use api::fake::{Answer, client};
    use serde_json::json;

    use super::*;
    use crate::pods::fixtures::labelled;

    #[tokio::test]
    async fn missing_secret_is_a_problem() {
        let namespace = |name: &str, value: &str| labelled(name, &json!({"istio-aux.io/injection": value}));
        let namespaces = [namespace("a", "enabled"), namespace("b", "enabled"), namespace("c", "disabled")];
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry"}});
        let found = |namespace: &str| {
            Answer::ok(&format!("GET /api/v1/namespaces/{namespace}/secrets/registry"), secret.clone())
        };
        let secrets = ["registry".to_owned()];
        let (one, _) = client([found("a")]);
        let findings = run(&one, &namespaces, &Selectors::default(), &secrets).await;
        let lines: Vec<String> = findings.iter().map(Finding::line).collect();
        let missing = "namespace b lacks the Secret registry, with which nodes are to pull the shim's image";
        assert_eq!(lines, [format!("problem pull-secret: {missing}")]);
        let (both, requests) = client([found("a"), found("b")]);
        assert_eq!(
            run(&both, &namespaces, &Selectors::default(), &secrets).await[0].line(),
            "ok pull-secret: the namespaces that opted in have registry"
        );
        assert_eq!(requests.all().len(), 2);
        let forbidden = |namespace: &str| {
            Answer::forbidden(&format!("GET /api/v1/namespaces/{namespace}/secrets/registry"), "no rights")
        };
        for (answers, said) in [
            (vec![forbidden("a"), forbidden("b")], vec![Id::Unreadable]),
            (vec![forbidden("a")], vec![Id::Unreadable, Id::PullSecret]),
        ] {
            let (client, _) = client(answers);
            let findings = run(&client, &namespaces, &Selectors::default(), &secrets).await;
            assert_eq!(findings.iter().map(|finding| finding.id).collect::<Vec<_>>(), said);
        }
        assert!(run(&both, &namespaces, &Selectors::default(), &[]).await.is_empty());
    }
}
