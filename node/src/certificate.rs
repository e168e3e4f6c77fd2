//! The pod's certificate. The agent requests it on behalf of the pod's service account; istiod checks that such a pod is on
//! the agent's node (`CA_TRUSTED_NODE_ACCOUNTS`).

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use prost_types::{Struct, Value, value::Kind};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use tokio::fs;
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use x509_parser::pem::parse_x509_pem;

use crate::api::ca::IstioCertificateRequest;
use crate::api::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use crate::error::{Context, Error, Result};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits all of it: the TLS handshake has no limit of its own.
const ISSUE_TIMEOUT: Duration = Duration::from_secs(20);

/// Holds a certificate with its key, as PEM.
#[derive(Clone)]
pub struct WorkloadCertificate {
    /// The leaf and the intermediates, without the root.
    pub chain: String,
    /// The root.
    pub root: String,
    /// The private key.
    pub key: String,
}

/// Holds how the agent reaches istiod's CA.
#[derive(Debug, Args)]
pub struct CertificateAuthority {
    /// istiod's certificate authority
    #[arg(long = "ca-address", default_value = "https://istiod.istio-system.svc:15012")]
    pub address: String,
    /// The CA of istiod's own certificate
    #[arg(long = "ca-root", default_value = "/var/run/secrets/istio/root-cert.pem")]
    pub root: PathBuf,
    /// The agent's token for istiod, of audience `istio-ca`
    #[arg(long, default_value = "/var/run/secrets/tokens/istio-token")]
    pub token: PathBuf,
    /// The cluster's name in the mesh, in which istiod looks for the pod
    #[arg(long = "cluster-id", default_value = "Kubernetes")]
    pub cluster: String,
    /// Seconds for which certificates are valid, at most istiod's `MAX_WORKLOAD_CERT_TTL`
    #[arg(long = "certificate-ttl", default_value_t = 86_400, value_parser = clap::value_parser!(i64).range(600..))]
    pub ttl: i64,
}

impl CertificateAuthority {
    /// Requests a certificate for a SPIFFE identity, within a limited time: others may wait for it.
    pub async fn issue(&self, identity: &str) -> Result<WorkloadCertificate> {
        let issued = timeout(ISSUE_TIMEOUT, self.request_certificate(identity)).await;
        issued.unwrap_or_else(|_| Err(Error::new(format_args!("istiod has not signed within {ISSUE_TIMEOUT:?}"))))
    }

    async fn request_certificate(&self, identity: &str) -> Result<WorkloadCertificate> {
        let key = KeyPair::generate()?;
        let csr = request(identity, &key).context("the certificate request")?;
        let (root, token) = (read(&self.root).await?, read(&self.token).await?);
        let mut request = Request::new(IstioCertificateRequest {
            csr,
            validity_duration: self.ttl,
            metadata: Some(on_behalf_of(identity)),
        });
        let bearer = format!("Bearer {}", token.trim()).parse().context("the agent's token")?;
        request.metadata_mut().insert("authorization", bearer);
        request.metadata_mut().insert("clusterid", self.cluster.parse().context("the cluster's name")?);
        let channel = self.connect(root).await.context("istiod")?;
        let response = IstioCertificateServiceClient::new(channel).create_certificate(request).await;
        let refused =
            |cause: Status| Error::new(format_args!("istiod signs no certificate for {identity}: {}", cause.message()));
        let chain = response.map_err(refused)?.into_inner().cert_chain;
        assemble(chain, &key).context("istiod's certificate")
    }

    async fn connect(&self, root: String) -> Result<Channel, tonic::transport::Error> {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root));
        let endpoint = Endpoint::from_shared(self.address.clone())?.tls_config(tls)?;
        endpoint.connect_timeout(REQUEST_TIMEOUT).timeout(REQUEST_TIMEOUT).connect().await
    }
}

/// Returns the first and the last second since 1970 of a chain's leaf; `None` where it cannot be read.
pub(crate) fn validity(chain: &[u8]) -> Option<[u64; 2]> {
    let (_, pem) = parse_x509_pem(chain).ok()?;
    let validity = pem.parse_x509().ok()?.validity().clone();
    let [not_before, not_after] = [validity.not_before, validity.not_after].map(|time| time.timestamp().try_into());
    Some([not_before.ok()?, not_after.ok()?])
}

/// Returns the time at which half of a chain's life is over, in seconds since 1970.
pub(crate) fn renewal_due(chain: &[u8]) -> Option<u64> {
    let [not_before, not_after] = validity(chain)?;
    Some(not_before + not_after.saturating_sub(not_before) / 2)
}

/// Returns the time until then: zero for a chain that cannot be read.
pub(crate) fn renewal_due_in(chain: &[u8]) -> Duration {
    Duration::from_secs(renewal_due(chain).unwrap_or_default().saturating_sub(now()))
}

/// Returns the seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).await.context(path.display())
}

fn request(identity: &str, key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
    params.serialize_request(key)?.pem()
}

/// Returns the metadata by which istiod signs for another account than the caller's.
fn on_behalf_of(identity: &str) -> Struct {
    let value = Value { kind: Some(Kind::StringValue(identity.to_owned())) };
    Struct { fields: [("ImpersonatedIdentity".to_owned(), value)].into() }
}

fn assemble(mut chain: Vec<String>, key: &KeyPair) -> Result<WorkloadCertificate> {
    let root = chain.pop().filter(|_| !chain.is_empty()).context("it comes without a root")?;
    let (_, pem) = parse_x509_pem(chain[0].as_bytes())?;
    if pem.parse_x509()?.validity().time_to_expiration().is_none() {
        return Err(Error::new("it has expired"));
    }
    let lines: Vec<_> = chain.iter().map(|pem| pem.trim_end()).collect();
    Ok(WorkloadCertificate { chain: format!("{}\n", lines.join("\n")), root, key: key.serialize_pem() })
}
