//! Lists the node's proxies and prints their logs, for operators.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use cni::logger::rotated;
use cni::protocol::Sandbox;
use serde_json::{Value, json};

use crate::containerd::{Containerd, Error};
use crate::error::{self, Context};
use crate::metrics::Gauges;
use crate::proxy::{self, SandboxFiles, sandbox_of_proxy};

/// Describes a proxy of this node.
#[derive(Debug)]
pub struct Proxy {
    /// The proxy's sandbox.
    pub sandbox: Sandbox,
    /// The name of the image that it was started from.
    pub image: String,
    /// The state of its process.
    pub state: ProxyState,
    /// The time for which its certificate is valid; `None` where it has expired or cannot be read.
    pub certificate_expires_in: Option<Duration>,
}

/// Lists the states of a proxy's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyState {
    /// Serving.
    Running,
    /// Replaced by the serving proxy; ends with its last connection.
    Draining,
    /// Starting: the pod's first proxy, or one that replaces the serving proxy.
    Starting,
    /// Ended.
    Ended,
    /// Not known: the proxy's shim does not answer containerd, or the record of the serving proxy cannot be read.
    Unknown,
    /// Not there: the pod runs outside of the mesh.
    Missing,
}

impl ProxyState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Starting => "starting",
            Self::Ended => "ended",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
        }
    }
}

/// Returns the proxies of this node, and those that pods lack, sorted by the pods' names.
pub async fn proxies(containerd: &Containerd, run_dir: &Path) -> Result<Vec<Proxy>, Error> {
    let mut found = Vec::new();
    for (id, labels) in containerd.list(&[]).await? {
        let Some(files) = sandbox_of_proxy(&id).map(|sandbox| SandboxFiles::of(run_dir, sandbox)) else { continue };
        let Some(sandbox) = files.sandbox() else { continue };
        let state = match (containerd.pid(&id).await, files.age(&id)) {
            (Err(_), _) | (_, Err(_)) => ProxyState::Unknown,
            (Ok(None), _) if matches!(files.revision(), Ok(None)) => ProxyState::Starting,
            (Ok(None), _) => ProxyState::Ended,
            (_, Ok(Ordering::Less)) => ProxyState::Draining,
            (_, Ok(Ordering::Equal)) => ProxyState::Running,
            (_, Ok(Ordering::Greater)) => ProxyState::Starting,
        };
        let image = proxy::image_of(&labels);
        let certificate_expires_in = files.certificate_expires_in();
        found.push(Proxy { sandbox, image, state, certificate_expires_in });
    }
    found.extend(proxy::pods_without_proxy(containerd, run_dir).await?.into_iter().map(missing));
    found.sort_by_key(|proxy| (pod_of(&proxy.sandbox), proxy.state));
    Ok(found)
}

fn missing(sandbox: Sandbox) -> Proxy {
    Proxy { sandbox, image: "none".into(), state: ProxyState::Missing, certificate_expires_in: None }
}

/// Returns the metrics' gauges. While a proxy is upgraded, its sandbox has two.
pub async fn gauges(containerd: &Containerd, run_dir: &Path, image: &str) -> Result<Gauges, Error> {
    let all = containerd.list(&[]).await?;
    let sandboxes: BTreeSet<_> = all.keys().filter_map(|id| sandbox_of_proxy(id)).collect();
    let files = |sandbox: &str| SandboxFiles::of(run_dir, sandbox);
    let is_serving =
        |id: &str| sandbox_of_proxy(id).is_some_and(|sandbox| files(sandbox).age(id).is_ok_and(Ordering::is_eq));
    let is_outdated = |(id, labels): &(&String, &_)| is_serving(id) && proxy::image_of(labels) != image;
    Ok(Gauges {
        proxies: sandboxes.len() as u64,
        outdated: all.iter().filter(is_outdated).count() as u64,
        pods_without_proxy: proxy::pods_without_proxy(containerd, run_dir).await?.len() as u64,
        earliest_renewal: sandboxes.iter().filter_map(|sandbox| files(sandbox).renewal_due()).min(),
    })
}

/// Returns `NAMESPACE/NAME`.
#[must_use]
pub fn pod_of(sandbox: &Sandbox) -> String {
    format!("{}/{}", sandbox.namespace, sandbox.name)
}

/// Renders the proxies as a table for people.
#[must_use]
pub fn table(proxies: &[Proxy]) -> String {
    let pods: Vec<_> = proxies.iter().map(|proxy| pod_of(&proxy.sandbox)).collect();
    let width = pods.iter().map(String::len).chain([3]).max().unwrap_or_default();
    let head = format!("{:width$}  PROXY     CERTIFICATE  SANDBOX        IMAGE\n", "POD");
    let lines = pods.iter().zip(proxies).map(|(pod, proxy)| {
        let (state, image) = (proxy.state.as_str(), &proxy.image);
        let certificate = proxy.certificate_expires_in.map_or_else(|| "none".to_owned(), hours);
        let sandbox: String = proxy.sandbox.id.chars().take(13).collect();
        format!("{pod:width$}  {state:8}  {certificate:11}  {sandbox:13}  {image}\n")
    });
    std::iter::once(head).chain(lines).collect()
}

/// Renders the proxies as JSON for programs.
#[must_use]
pub fn to_json(proxies: &[Proxy]) -> Value {
    let proxies = proxies.iter().map(|proxy| {
        json!({
            "pod": pod_of(&proxy.sandbox), "uid": proxy.sandbox.uid, "sandbox": proxy.sandbox.id,
            "state": proxy.state.as_str(), "image": proxy.image,
            "certificateExpiresInSeconds": proxy.certificate_expires_in.map(|left| left.as_secs()),
        })
    });
    proxies.collect()
}

fn hours(left: Duration) -> String {
    let minutes = left.as_secs() / 60;
    format!("{}h{}m", minutes / 60, minutes % 60)
}

/// Writes the log of the proxy of a pod, `NAMESPACE/NAME`, to `output`.
pub fn write_log(pod: &str, proxies: &[Proxy], logs: &Path, mut output: impl io::Write) -> error::Result<()> {
    let mut with_log = proxies.iter().filter(|proxy| proxy.state != ProxyState::Missing);
    let found = with_log.find(|proxy| pod_of(&proxy.sandbox) == pod);
    let proxy = found.context(format_args!("{pod} has no proxy on this node; `istio-aux-node status` lists all"))?;
    let path = proxy::log_of(logs, &proxy.sandbox.id);
    // There is none before the first rotation.
    let mut earlier: Box<dyn Read> =
        File::open(rotated(&path)).map_or_else(|_| Box::new(io::empty()) as _, |log| Box::new(log) as _);
    let mut log = earlier.by_ref().chain(File::open(&path).context(path.display())?);
    match io::copy(&mut log, &mut output) {
        // A reader such as `head` has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        copied => copied.map(drop).context(path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_proxy(name: &str, state: ProxyState, certificate_expires_in: Option<Duration>) -> Proxy {
        let sandbox = Sandbox {
            id: format!("{name}-0123456789abcdef"),
            namespace: "team".into(),
            name: name.into(),
            uid: "u1".into(),
            ..Sandbox::default()
        };
        Proxy { sandbox, image: "proxyv2_1.31.0".into(), state, certificate_expires_in }
    }

    #[test]
    fn table_shows_state_and_certificate_of_each_proxy() {
        let valid = Some(Duration::from_secs(5_430));
        let proxies = [
            a_proxy("train-0", ProxyState::Running, valid),
            a_proxy("train-0", ProxyState::Draining, valid),
            a_proxy("x", ProxyState::Ended, None),
            missing(a_proxy("y", ProxyState::Missing, None).sandbox),
        ];
        let expected = "\
POD           PROXY     CERTIFICATE  SANDBOX        IMAGE
team/train-0  running   1h30m        train-0-01234  proxyv2_1.31.0
team/train-0  draining  1h30m        train-0-01234  proxyv2_1.31.0
team/x        ended     none         x-0123456789a  proxyv2_1.31.0
team/y        missing   none         y-0123456789a  none
";
        assert_eq!(table(&proxies), expected);
        assert_eq!(table(&[]), "POD  PROXY     CERTIFICATE  SANDBOX        IMAGE\n");
    }

    #[test]
    fn json_has_seconds_and_whole_ids() {
        let json = to_json(&[a_proxy("x", ProxyState::Running, Some(Duration::from_secs(61)))]);
        let expected = json!([{
            "pod": "team/x", "uid": "u1", "sandbox": "x-0123456789abcdef", "state": "running", "image": "proxyv2_1.31.0",
            "certificateExpiresInSeconds": 61,
        }]);
        assert_eq!(json, expected);
    }

    #[test]
    fn log_is_found_by_pod_name() {
        let logs = tempfile::tempdir().unwrap();
        let proxies = [a_proxy("x", ProxyState::Running, None), a_proxy("y", ProxyState::Missing, None)];
        std::fs::write(logs.path().join("x-0123456789abcdef.log"), "ready\n").unwrap();
        let mut output = Vec::new();
        write_log("team/x", &proxies, logs.path(), &mut output).unwrap();
        assert_eq!(output, b"ready\n");
        let error = write_log("team/y", &proxies, logs.path(), &mut output).unwrap_err().to_string();
        assert_eq!(error, "team/y has no proxy on this node; `istio-aux-node status` lists all");
        proxy::remove_log(logs.path(), "x-0123456789abcdef").unwrap();
        proxy::remove_log(logs.path(), "x-0123456789abcdef").unwrap();
        assert!(
            write_log("team/x", &proxies, logs.path(), &mut output).unwrap_err().to_string().contains("No such file")
        );
    }
}
