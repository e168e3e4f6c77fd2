//! The readiness of the agent, for the probe of its pod.

use std::path::Path;
use std::time::{Duration, Instant};

use cni::protocol::{self, Request};
use tokio::time::timeout;

use crate::containerd::Containerd;
use crate::error::{Context, Error, Result};
use crate::handler::{self, CniDirectories};

/// Limits each of the two checks; together they are shorter than the probe's timeout.
const CHECK_TIMEOUT: Duration = Duration::from_secs(4);

/// Fails unless the agent takes requests and upgrades the node's proxies, and containerd has the runtime class's handler as it
/// should be.
pub async fn check(containerd: &Containerd, run_dir: &Path, cni: &CniDirectories) -> Result<()> {
    let deadline = Instant::now() + CHECK_TIMEOUT;
    cni::agent::call(&protocol::socket(run_dir), &Request::Rollout, deadline).map_err(Error::new)?;
    let configuration = timeout(CHECK_TIMEOUT, containerd.configuration()).await;
    handler::check(&configuration.context("containerd does not respond")??, cni)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use clap::{Args, Command, FromArgMatches};

    use super::*;

    #[tokio::test]
    async fn agent_or_containerd_that_is_away_is_named() {
        let run_dir = tempfile::tempdir().unwrap();
        let containerd = Containerd::at(&run_dir.path().join("containerd.sock")).unwrap();
        let cni = CniDirectories::from_arg_matches(
            &CniDirectories::augment_args(Command::new("ready")).get_matches_from(["ready"]),
        );
        let cni = cni.unwrap();
        let error = check(&containerd, run_dir.path(), &cni).await.unwrap_err().to_string();
        assert!(error.contains("node.sock"), "{error}");
        let agent = UnixListener::bind(protocol::socket(run_dir.path())).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = agent.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            writeln!(stream, "{{}}").unwrap();
        });
        let error = check(&containerd, run_dir.path(), &cni).await.unwrap_err().to_string();
        assert!(error.contains("containerd"), "{error}");
    }
}
