//! Ends the proxies of stuck pods with the caller's own rights: one `POST` to pilot-agent through a port that the API server
//! forwards. For pods that were created before istio-aux was installed.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use contract::kind::PODS;
use contract::names::QUIT_PATH;
use futures::{StreamExt, stream};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Serialize;
use tokio::time::timeout;

use crate::completion::{PodCompletion, wait_for_pod};
use crate::pods::{StuckPod, check_stuck};
use crate::read;

/// Limits the pods that are finished at the same time.
const CONCURRENCY_LIMIT: usize = 8;
/// Limits the time between the end of a forwarded stream and its reason.
const PORT_ERROR_TIMEOUT: Duration = Duration::from_secs(2);
const NO_ANSWER: &str = "pilot-agent cannot be asked";

/// Selects the pods to finish.
#[derive(Debug, Clone)]
pub(crate) enum PodSelection {
    /// Selects these pods of a namespace.
    Named { namespace: String, names: Vec<String> },
    /// Selects all stuck pods with these labels, of one namespace or of all.
    AllStuck { namespace: Option<String>, selector: String },
}

/// Holds the result for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Outcome {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) succeeded: bool,
    pub(crate) message: String,
}

/// Finishes pods if the caller agrees to them, and reports each outcome at once. `Err` if no pod could be read.
pub(crate) async fn run(
    client: &Client,
    selection: PodSelection,
    dry_run: bool,
    limit: Duration,
    agrees: impl FnOnce(&[StuckPod]) -> bool,
    mut report: impl FnMut(Outcome),
) -> Result<()> {
    let stuck = find(client, selection, &mut report).await?;
    if !dry_run && !agrees(&stuck) {
        bail!("nothing was changed");
    }
    let finished = stream::iter(stuck).map(|pod| async move {
        let result = if dry_run {
            Ok(format!("would be finished (its containers ended at {})", pod.since))
        } else {
            finish(client, &pod, limit).await
        };
        outcome(&pod.namespace, &pod.name, result)
    });
    let mut finished = finished.buffer_unordered(CONCURRENCY_LIMIT);
    while let Some(outcome) = finished.next().await {
        report(outcome);
    }
    Ok(())
}

fn outcome(namespace: &str, name: &str, result: Result<String>) -> Outcome {
    let succeeded = result.is_ok();
    let message = result.unwrap_or_else(|error| api::describe_error(error.as_ref()));
    Outcome { namespace: namespace.to_owned(), name: name.to_owned(), succeeded, message }
}

/// Returns the stuck pods of a selection. Named pods that are not stuck are reported.
async fn find(client: &Client, selection: PodSelection, report: &mut impl FnMut(Outcome)) -> Result<Vec<StuckPod>> {
    let mut stuck = Vec::new();
    match selection {
        PodSelection::AllStuck { namespace, selector } => {
            let running = ListParams::default().labels(&selector).fields("status.phase=Running");
            let add = |pod| stuck.extend(check_stuck(&pod).ok());
            read::for_each(client, PODS, namespace.as_deref(), &running, add).await?;
        }
        PodSelection::Named { namespace, names } => {
            for name in names {
                let pod = read::get(client, PODS, Some(&namespace), &name).await?;
                match pod.as_ref().context("not found").and_then(check_stuck) {
                    Ok(pod) => stuck.push(pod),
                    Err(reason) => report(outcome(&namespace, &name, Err(reason.context("skipped")))),
                }
            }
        }
    }
    Ok(stuck)
}

async fn finish(client: &Client, pod: &StuckPod, limit: Duration) -> Result<String> {
    if pod.status_port == 0 {
        bail!("its status port is 0, so pilot-agent cannot be asked to quit; next: delete the pod");
    }
    // It was listed before the caller agreed, and before other pods were finished.
    let now = read::get(client, PODS, Some(&pod.namespace), &pod.name).await?;
    if now.as_ref().context("it was deleted").and_then(check_stuck)?.uid != pod.uid {
        bail!("another pod has its name now");
    }
    let asked = timeout(limit, request_quit(client, pod)).await;
    asked.map_err(|_| anyhow!("pilot-agent did not answer within {limit:?}"))??;
    match wait_for_pod(client, &pod.namespace, &pod.name, limit).await? {
        PodCompletion::Terminated(pod) => {
            Ok(format!("finished: {}", pod["status"]["phase"].as_str().unwrap_or_default()))
        }
        PodCompletion::Deleted => Ok("finished, and deleted since".to_owned()),
        PodCompletion::TimedOut(_) => {
            bail!("its proxy was asked to quit, but the pod did not end within {limit:?}; next: delete the pod")
        }
    }
}

/// Asks pilot-agent to quit. It accepts that from inside the pod only.
async fn request_quit(client: &Client, pod: &StuckPod) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let port = pod.status_port;
    let forwarder = pods.portforward(&pod.name, &[port]).await;
    let mut forwarder = forwarder
        .with_context(|| format!("cannot forward port {port} (this needs get and create on pods/portforward)"))?;
    let stream = forwarder.take_stream(port).context("the port was not forwarded")?;
    let port_error = forwarder.take_error(port);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context(NO_ANSWER)?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .uri(QUIT_PATH)
        .header(HOST, format!("localhost:{port}"))
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await;
    connection.abort();
    // Without a server on the port, the kubelet says so beside the stream, which ends.
    let port_error = match (&answer, port_error) {
        (Err(_), Some(port_error)) => timeout(PORT_ERROR_TIMEOUT, port_error).await.ok().flatten(),
        _ => None,
    };
    forwarder.abort();
    match answer {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => bail!("pilot-agent answered {}", answer.status()),
        Err(_) if let Some(port_error) = port_error => {
            bail!("{NO_ANSWER}: {}; next: delete the pod", port_error.trim())
        }
        // pilot-agent may end before its response is complete.
        Err(error) if error.is_incomplete_message() => Ok(()),
        Err(error) => Err(error).context(NO_ANSWER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::fixtures::{stuck_pod, stuck_pod_with};
    use api::fake::{Answer, client};
    use serde_json::{Value, json};

    const GET: &str = "GET /api/v1/namespaces/team/pods/hello";

    /// Returns a pod whose container still runs.
    fn running_pod() -> Value {
        stuck_pod_with("/status/containerStatuses/0/state", json!({"running": {}}))
    }

    async fn outcomes(client: &Client, selection: PodSelection) -> Vec<(String, bool, String)> {
        let mut outcomes = Vec::new();
        let report = |outcome: Outcome| outcomes.push((outcome.name, outcome.succeeded, outcome.message));
        run(client, selection, true, Duration::ZERO, |_| panic!("nobody is asked"), report).await.unwrap();
        outcomes
    }

    #[tokio::test]
    async fn dry_run_lists_stuck_pods_and_posts_nothing() {
        let pods = [stuck_pod(), running_pod()];
        let (client, requests) = client([Answer::list("GET /api/v1/namespaces/team/pods?", &pods)]);
        let selection = PodSelection::AllStuck { namespace: Some("team".to_owned()), selector: "app=a".to_owned() };
        let would = "would be finished (its containers ended at 2026-11-21T10:00:00Z)";
        assert_eq!(outcomes(&client, selection).await, [("hello".to_owned(), true, would.to_owned())]);
        let [list] = &requests.all()[..] else { panic!("{:?}", requests.all()) };
        assert!(list.contains("labelSelector=app%3Da") && list.contains("fieldSelector=status.phase%3DRunning"));
    }

    #[tokio::test]
    async fn caller_who_does_not_agree_leaves_all_pods() {
        let (client, requests) = client([Answer::list("GET /api/v1/pods?", &[stuck_pod()])]);
        let selection = PodSelection::AllStuck { namespace: None, selector: String::new() };
        let refuses = |pods: &[StuckPod]| {
            assert_eq!(pods.len(), 1);
            false
        };
        let report = |outcome: Outcome| panic!("{outcome:?}");
        let error = run(&client, selection, false, Duration::ZERO, refuses, report).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), requests.all().len()), ("nothing was changed", 1));
    }

    #[tokio::test]
    async fn pod_that_has_changed_since_it_was_listed_is_not_asked() {
        let another = stuck_pod_with("/metadata/uid", json!("2b"));
        let cases = [
            (Answer::ok(GET, another), "another pod has its name now"),
            (Answer::ok(GET, running_pod()), "its container main still runs"),
            (Answer::failure(GET, 404, "not found"), "it was deleted"),
        ];
        for (answer, expected) in cases {
            let (client, requests) = client([answer]);
            let error = finish(&client, &check_stuck(&stuck_pod()).unwrap(), Duration::ZERO).await.unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert_eq!(requests.all().len(), 1, "{:?}", requests.all());
        }
    }

    #[tokio::test]
    async fn named_pod_that_is_not_stuck_is_skipped() {
        let (client, _) = client([Answer::ok("GET /api/v1/namespaces/team/pods/runs", running_pod())]);
        let names = vec!["runs".to_owned(), "none".to_owned()];
        let selection = PodSelection::Named { namespace: "team".to_owned(), names };
        let expected = [
            ("runs".to_owned(), false, "skipped: its container main still runs".to_owned()),
            ("none".to_owned(), false, "skipped: not found".to_owned()),
        ];
        assert_eq!(outcomes(&client, selection).await, expected);
    }
}
