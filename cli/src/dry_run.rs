//! Asks the API server what it would make of a pod, with every admission plug-in and webhook, and stores nothing.

use anyhow::{Context, Result, bail};
use api::objects;
use contract::kind::PODS;
use http_body_util::BodyExt;
use hyper::header::WARNING;
use kube::Client;
use kube::api::PostParams;
use kube::client::Body;
use kube::core::Request;
use serde_json::Value;

/// Holds the server's verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// Has the pod as the server would store it, and the warnings of admission, which `kubectl` prints.
    Admitted { pod: Value, warnings: Vec<String> },
    /// Has the message by which the server would reject the pod.
    Rejected(String),
    /// Has the message that denies the caller the right to create pods.
    Forbidden(String),
}

/// Creates a pod as a dry run. `Err` if the server gives no verdict.
pub(crate) async fn dry_run_pod(client: &Client, namespace: &str, pod: &Value) -> Result<DryRun> {
    let resource = Request::new(objects(client, PODS, Some(namespace)).resource_url());
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let request = resource.create(&parameters, pod.to_string().into_bytes())?;
    // `Client::request` does not return the headers, in which the warnings are.
    let answer = client.send(request.map(Body::from)).await?;
    let status = answer.status();
    let warnings = answer.headers().get_all(WARNING).iter();
    let warnings = warnings.filter_map(|value| warning_text(value.to_str().ok()?)).collect();
    let body = answer.into_body().collect().await?.to_bytes();
    let body: Value =
        serde_json::from_slice(&body).with_context(|| format!("the API server answered {status} without JSON"))?;
    let message = || body["message"].as_str().unwrap_or(status.as_str()).to_owned();
    match status.as_u16() {
        200..=299 => Ok(DryRun::Admitted { pod: body, warnings }),
        // Admission rejects with 403, too; only the authorizer's message names the user.
        403 if message().contains("cannot create resource \"pods\"") => Ok(DryRun::Forbidden(message())),
        400..=499 => Ok(DryRun::Rejected(message())),
        // A webhook that cannot be called is a 500.
        500 if message().contains("failed calling webhook") => Ok(DryRun::Rejected(message())),
        _ => bail!("the API server answered {status}: {}", message()),
    }
}

/// Returns the text of a header `Warning: 299 - "TEXT"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?.trim();
    let text = quoted.strip_prefix('"')?.strip_suffix('"')?;
    Some(text.replace("\\\"", "\"").replace("\\\\", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fake::{Answer, client};
    use serde_json::json;

    const CREATE: &str = "POST /api/v1/namespaces/team/pods?&dryRun=All";

    #[tokio::test]
    async fn admitted_pod_has_its_warnings() {
        let answer = Answer::ok(CREATE, json!({"kind": "Pod"})).warning("299 - \"not \\\"main\\\"\"");
        let (client, _) = client([answer]);
        let admitted = DryRun::Admitted { pod: json!({"kind": "Pod"}), warnings: vec!["not \"main\"".to_owned()] };
        assert_eq!(dry_run_pod(&client, "team", &json!({})).await.unwrap(), admitted);
    }

    #[tokio::test]
    async fn rejection_differs_from_missing_rights() {
        type Verdict = fn(String) -> DryRun;
        let cases: [(u16, &str, Verdict); 4] = [
            (403, "pods \"x\" is forbidden: exceeded quota: q", DryRun::Rejected),
            (403, "pods is forbidden: User \"me\" cannot create resource \"pods\" in API group", DryRun::Forbidden),
            (422, "Pod \"x\" is invalid", DryRun::Rejected),
            (500, "Internal error occurred: failed calling webhook \"istio\"", DryRun::Rejected),
        ];
        for (code, message, verdict) in cases {
            let (client, _) = client([Answer::failure(CREATE, code, message)]);
            assert_eq!(dry_run_pod(&client, "team", &json!({})).await.unwrap(), verdict(message.to_owned()));
        }
    }

    #[tokio::test]
    async fn server_error_is_not_a_verdict() {
        let (client, _) = client([Answer::failure(CREATE, 500, "etcdserver: leader changed")]);
        let error = dry_run_pod(&client, "team", &json!({})).await.unwrap_err();
        assert!(error.to_string().ends_with("etcdserver: leader changed"), "{error}");
    }
}
