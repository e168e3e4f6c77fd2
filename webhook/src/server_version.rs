//! Asks for the API server's version. It says whether there are native sidecars (`restartPolicy` of init containers, KEP-753).

use std::time::Duration;

use kube::Client;
use tokio::time::timeout;

use contract::error_chain::display_chain;
use contract::version::Version;

/// Limits the time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the version is not known.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// The program does not run in a cluster.
    NoCluster(String),
    /// The API server has not answered, or with no version.
    NoAnswer(String),
}

/// Asks the API server of the pod's own cluster. Every authenticated account may.
pub(crate) async fn ask() -> Result<Version, Unknown> {
    let client = Client::try_default().await.map_err(|error| Unknown::NoCluster(display_chain(&error)))?;
    let answer = timeout(REQUEST_TIMEOUT, client.apiserver_version()).await;
    let info = answer.map_err(|_| Unknown::NoAnswer(format!("no answer within {REQUEST_TIMEOUT:?}")))?;
    let info = info.map_err(|error| Unknown::NoAnswer(display_chain(&error)))?;
    Version::parse(&format!("{}.{}", info.major, info.minor))
        .ok_or_else(|| Unknown::NoAnswer(format!("its version is {:?}.{:?}", info.major, info.minor)))
}
