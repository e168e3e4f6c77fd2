//! Ends the proxies of pods that are stuck with only them running, with the user's own rights: a `POST` to pilot-agent
//! through a port that the API server forwards. For pods that were there before istio-aux.

use std::time::Duration;

use bytes::Bytes;
use contract::names::QUIT_PATH;
use futures::{StreamExt, stream};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::api::{self, End, PODS, in_words};
use crate::stuck::{Stuck, judge};

/// How many pods are finished at once.
const AT_ONCE: usize = 8;

/// Which pods to finish.
#[derive(Debug, Clone)]
pub(crate) enum Which {
    /// These of a namespace.
    Named { namespace: String, names: Vec<String> },
    /// All that are stuck, of a namespace or of all.
    AllStuck { namespace: Option<String> },
}

/// Finishes pods, and says of each what became of it. Returns whether all is well. `Err` where none could be looked at.
pub(crate) async fn run(client: &Client, which: Which, dry_run: bool, within: Duration) -> Result<bool, String> {
    let (stuck, mut is_well) = find(client, which).await?;
    if stuck.is_empty() && is_well {
        println!("no pod is stuck");
        return Ok(true);
    }
    let mut ends = stream::iter(stuck).map(|stuck| finish(client, stuck, dry_run, within)).buffer_unordered(AT_ONCE);
    while let Some((stuck, end)) = ends.next().await {
        match end {
            Ok(end) => println!("pod {}/{}: {end}", stuck.namespace, stuck.name),
            Err(reason) => {
                eprintln!("istio-aux: pod {}/{}: {reason}", stuck.namespace, stuck.name);
                is_well = false;
            }
        }
    }
    Ok(is_well)
}

/// The stuck ones of those that are asked for, and whether they all are.
async fn find(client: &Client, which: Which) -> Result<(Vec<Stuck>, bool), String> {
    match which {
        Which::AllStuck { namespace } => {
            let pods = api::list(client, PODS, namespace.as_deref(), "").await?;
            Ok((pods.iter().filter_map(|pod| judge(pod).ok()).collect(), true))
        }
        Which::Named { namespace, names } => {
            let (mut stuck, mut is_well) = (Vec::new(), true);
            for name in names {
                let pod = api::get(client, PODS, Some(&namespace), &name).await?;
                let judged = pod.as_ref().map_or_else(|| Err("there is no such pod".to_owned()), judge);
                match judged {
                    Ok(pod) => stuck.push(pod),
                    Err(reason) => {
                        eprintln!("istio-aux: pod {namespace}/{name} is left alone: {reason}");
                        is_well = false;
                    }
                }
            }
            Ok((stuck, is_well))
        }
    }
}

async fn finish(client: &Client, stuck: Stuck, dry_run: bool, within: Duration) -> (Stuck, Result<String, String>) {
    if dry_run {
        let end = format!("would be finished (its payload ended at {})", stuck.since);
        return (stuck, Ok(end));
    }
    let end = async {
        if stuck.status_port == 0 {
            return Err("its status port is 0, so nothing answers that could end the proxy: delete the pod".to_owned());
        }
        let asked = timeout(within, ask_to_quit(client, &stuck)).await;
        asked.map_err(|_| format!("pilot-agent did not answer within {within:?}"))??;
        until_ended(client, &stuck, within).await
    };
    let end = end.await;
    (stuck, end)
}

/// Asks pilot-agent to quit, as from within the pod.
async fn ask_to_quit(client: &Client, stuck: &Stuck) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &stuck.namespace);
    let port = stuck.status_port;
    let mut forwarder = pods.portforward(&stuck.name, &[port]).await.map_err(|error| {
        format!("cannot forward port {port} (this needs get and create on pods/portforward): {}", in_words(error))
    })?;
    let stream = forwarder.take_stream(port).ok_or("the port was not forwarded")?;
    let lost = |error: hyper::Error| format!("pilot-agent cannot be asked: {error}");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .uri(QUIT_PATH)
        .header(HOST, format!("localhost:{port}"))
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await;
    connection.abort();
    forwarder.abort();
    match answer {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("pilot-agent answered {}", answer.status())),
        // It may be gone before its answer is.
        Err(error) if error.is_incomplete_message() => Ok(()),
        Err(error) => Err(lost(error)),
    }
}

/// Waits until the pod has ended, and says how.
async fn until_ended(client: &Client, stuck: &Stuck, within: Duration) -> Result<String, String> {
    match api::until_pod_ended(client, &stuck.namespace, &stuck.name, within).await? {
        End::Ended(pod) => Ok(format!("finished: {}", pod["status"]["phase"].as_str().unwrap_or_default())),
        End::Deleted => Ok("finished, and deleted since".to_owned()),
        End::Late(_) => Err(format!("its proxy was asked to quit, but it has not ended within {within:?}")),
    }
}
