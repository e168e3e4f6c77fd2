//! The pod's certificate: istiod signs it for the pod's service account on the agent's word, and checks that such a pod is on
//! the agent's node (istiod's `CA_TRUSTED_NODE_ACCOUNTS`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use prost_types::{Struct, Value, value::Kind};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use tokio::fs;
use tonic::Request;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use x509_parser::pem::parse_x509_pem;

use crate::api::ca::IstioCertificateRequest;
use crate::api::ca::istio_certificate_service_client::IstioCertificateServiceClient;

/// What istiod's chart asks for, in seconds.
const VALIDITY_SECONDS: i64 = 24 * 60 * 60;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the agent's own.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        cause: std::io::Error,
    },
    /// The key or the request.
    #[error("the certificate request: {0}")]
    Request(#[from] rcgen::Error),
    /// The connection.
    #[error("istiod: {0}")]
    Connect(#[from] tonic::transport::Error),
    /// istiod's own reason.
    #[error("istiod signs no certificate for {identity}: {}", cause.message())]
    Refused {
        /// For whom.
        identity: String,
        /// Why.
        cause: Box<tonic::Status>,
    },
    /// What istiod sent cannot be used.
    #[error("istiod's certificate: {0}")]
    Unusable(String),
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub struct WorkloadCertificate {
    /// The leaf and what signed it, without the root.
    pub chain: String,
    /// The root.
    pub root: String,
    /// The private key.
    pub key: String,
}

/// istiod as the agent knows it.
#[derive(Debug, Clone)]
pub struct CertificateAuthority {
    /// Such as `https://istiod.istio-system.svc:15012`.
    pub address: String,
    /// The file with the CA of istiod's own certificate.
    pub root: PathBuf,
    /// The file with the agent's token, of audience `istio-ca`.
    pub token: PathBuf,
    /// The cluster's name in the mesh, in which istiod looks for the pod.
    pub cluster: String,
}

impl CertificateAuthority {
    /// A certificate for a SPIFFE identity.
    pub async fn issue(&self, identity: &str) -> Result<WorkloadCertificate, Error> {
        let key = KeyPair::generate()?;
        let csr = request(identity, &key)?;
        let (root, token) = (read(&self.root).await?, read(&self.token).await?);
        let endpoint = Endpoint::from_shared(self.address.clone())?
            .tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root)))?
            .connect_timeout(REQUEST_TIMEOUT)
            .timeout(REQUEST_TIMEOUT);
        let mut client = IstioCertificateServiceClient::new(endpoint.connect().await?);
        let mut request = Request::new(IstioCertificateRequest {
            csr,
            validity_duration: VALIDITY_SECONDS,
            metadata: Some(on_behalf_of(identity)),
        });
        let bearer = format!("Bearer {}", token.trim()).parse();
        let bearer = bearer.map_err(|_| Error::Unusable("the agent's token is no header".into()))?;
        request.metadata_mut().insert("authorization", bearer);
        let cluster = self.cluster.parse();
        let cluster = cluster.map_err(|_| Error::Unusable("the cluster's name is no header".into()))?;
        request.metadata_mut().insert("clusterid", cluster);
        let refused = |cause| Error::Refused { identity: identity.to_owned(), cause: Box::new(cause) };
        let chain = client.create_certificate(request).await.map_err(refused)?.into_inner().cert_chain;
        assemble(chain, &key)
    }
}

async fn read(path: &PathBuf) -> Result<String, Error> {
    fs::read_to_string(path).await.map_err(|cause| Error::File { path: path.clone(), cause })
}

fn request(identity: &str, key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
    params.serialize_request(key)?.pem()
}

/// What makes istiod sign for another account than the caller's.
fn on_behalf_of(identity: &str) -> Struct {
    let value = Value { kind: Some(Kind::StringValue(identity.to_owned())) };
    Struct { fields: BTreeMap::from([("ImpersonatedIdentity".to_owned(), value)]).into_iter().collect() }
}

fn assemble(mut chain: Vec<String>, key: &KeyPair) -> Result<WorkloadCertificate, Error> {
    let root = chain.pop().filter(|_| !chain.is_empty());
    let root = root.ok_or_else(|| Error::Unusable("it comes without a root".into()))?;
    let unusable = |error: &dyn std::fmt::Display| Error::Unusable(error.to_string());
    let (_, pem) = parse_x509_pem(chain[0].as_bytes()).map_err(|error| unusable(&error))?;
    let leaf = pem.parse_x509().map_err(|error| unusable(&error))?;
    if leaf.validity().time_to_expiration().is_none() {
        return Err(Error::Unusable("it has expired".into()));
    }
    let lines: Vec<_> = chain.iter().map(|pem| pem.trim_end()).collect();
    Ok(WorkloadCertificate { chain: format!("{}\n", lines.join("\n")), root, key: key.serialize_pem() })
}
