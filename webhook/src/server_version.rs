//! The API server's version, and whether it has native sidecars (`restartPolicy` of init containers, KEP-753).

use std::fmt;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use tokio::time::timeout;

use crate::causes::with_causes;

/// How long the API server may take to answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The first version in which native sidecars are on by default.
const NATIVE_SIDECARS_SINCE: Version = Version { major: 1, minor: 29 };

/// A version of Kubernetes, or of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Version {
    /// Whether native sidecars are on by default.
    pub(crate) fn has_native_sidecars(self) -> bool {
        self >= NATIVE_SIDECARS_SINCE
    }

    /// Parses `1.34`, `v1.34.4-eks-1`, or a minor version with a suffix, as some providers have it (`29+`).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim_start_matches('v').split('.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Self { major: number()?, minor: number()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

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
    let client = Client::try_default().await.map_err(|error| Unknown::NoCluster(with_causes(&error)))?;
    let answer = timeout(REQUEST_TIMEOUT, client.apiserver_version()).await;
    let info = answer.map_err(|_| Unknown::NoAnswer(format!("no answer within {REQUEST_TIMEOUT:?}")))?;
    let info = info.map_err(|error| Unknown::NoAnswer(with_causes(&error)))?;
    read(&info).ok_or_else(|| Unknown::NoAnswer(format!("its version is {:?}.{:?}", info.major, info.minor)))
}

/// The version in the answer of an API server.
pub(crate) fn read(info: &Info) -> Option<Version> {
    Version::parse(&format!("{}.{}", info.major, info.minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_suffixes_of_providers_are_parsed() {
        let cases = [
            ("1.29", Some((1, 29))),
            ("v1.34.4", Some((1, 34))),
            ("1.28+", Some((1, 28))),
            ("v1.30.5-gke.1014001", Some((1, 30))),
            ("", None),
            ("1", None),
            ("x.y", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Version::parse(text), expected.map(|(major, minor)| Version { major, minor }), "{text}");
        }
    }

    #[test]
    fn native_sidecars_are_on_since_1_29() {
        for (text, has) in [("1.28", false), ("1.29", true), ("1.36", true), ("2.0", true)] {
            assert_eq!(Version::parse(text).unwrap().has_native_sidecars(), has, "{text}");
        }
    }
}
