//! Asks for the API server's version. It says whether there are native sidecars (`restartPolicy` of init containers, KEP-753).

use std::time::Duration;

use contract::version::Version;
use kube::Client;
use tokio::time::timeout;

/// Limits the time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports that the version is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no cluster is configured")]
    NoCluster(#[source] Box<kube::Error>),
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    Timeout,
    #[error("the request failed")]
    Request(#[source] Box<kube::Error>),
    #[error("cannot parse the version {0:?}")]
    Parse(String),
}

/// Asks the API server of the pod's own cluster. Every authenticated account may.
pub(crate) async fn ask() -> Result<Version, Error> {
    let client = Client::try_default().await.map_err(|error| Error::NoCluster(Box::new(error)))?;
    let answer = timeout(REQUEST_TIMEOUT, client.apiserver_version()).await.map_err(|_| Error::Timeout)?;
    let info = answer.map_err(|error| Error::Request(Box::new(error)))?;
    let version = format!("{}.{}", info.major, info.minor);
    Version::parse(&version).ok_or(Error::Parse(version))
}
