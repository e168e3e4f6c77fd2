//! The server's certificate from files that may change, and the TLS it is offered with.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::causes::with_causes;
use crate::metrics::Metrics;

/// The certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read, or holds no PEM of the right kind.
    #[error("{option} {} cannot be used: {reason}", .file.display())]
    File {
        /// The option that named it.
        option: &'static str,
        /// Which file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// Both can be read, and do not go together.
    #[error("--tls-cert {} and --tls-key {} do not go together", .cert.display(), .key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// How often the files are read again. Mounted Secrets follow theirs within a minute or two.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The certificate that is served: the last good one of two files that may change.
#[derive(Debug)]
pub(super) struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    served: ArcSwap<Served>,
}

#[derive(Debug)]
struct Served {
    config: Arc<ServerConfig>,
    /// Seconds since 1970.
    expires: i64,
    /// What both files held.
    texts: [Vec<u8>; 2],
}

impl Certificate {
    /// Reads both files.
    pub(super) fn read(cert: &Path, key: &Path) -> Result<Self, Error> {
        let served = Served::new(texts(cert, key)?, cert, key)?;
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), served: ArcSwap::from_pointee(served) })
    }

    /// What a new connection is offered.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.served.load().config.clone())
    }

    /// When it expires, in seconds since 1970.
    pub(super) fn expires(&self) -> i64 {
        self.served.load().expires
    }

    /// Serves what the files hold from now on whenever that changes, and what was good before where it cannot be used.
    pub(super) async fn follow(self: Arc<Self>, metrics: Arc<Metrics>) {
        let mut failed = None;
        loop {
            metrics.certificate(self.expires());
            sleep(READ_EVERY).await;
            match self.read_again() {
                Ok(None) => failed = None,
                Ok(Some(served)) => {
                    tracing::info!(expires = served.expires, "serving a new certificate");
                    self.served.store(Arc::new(served));
                    failed = None;
                }
                Err(error) => {
                    let error = with_causes(&error);
                    if failed.as_ref() != Some(&error) {
                        tracing::warn!(error, "the certificate before is kept");
                        metrics.certificate_failed();
                    }
                    failed = Some(error);
                }
            }
        }
    }

    /// What the files hold, where that is not what is served.
    fn read_again(&self) -> Result<Option<Served>, Error> {
        let texts = texts(&self.cert, &self.key)?;
        if texts == self.served.load().texts { Ok(None) } else { Served::new(texts, &self.cert, &self.key).map(Some) }
    }
}

/// What both files hold.
fn texts(cert: &Path, key: &Path) -> Result<[Vec<u8>; 2], Error> {
    let read = |option, file: &Path| fs::read(file).map_err(|error| file_error(option, file, &pem::Error::Io(error)));
    Ok([read("--tls-cert", cert)?, read("--tls-key", key)?])
}

impl Served {
    /// TLS 1.2 and 1.3, offering HTTP/2 and HTTP/1.1, with the certificate and key that two files hold.
    fn new(texts: [Vec<u8>; 2], cert: &Path, key: &Path) -> Result<Self, Error> {
        let chain = certificates(&texts[0]).map_err(|error| file_error("--tls-cert", cert, &error))?;
        let expires =
            expiry(&chain[0]).map_err(|reason| Error::File { option: "--tls-cert", file: cert.to_owned(), reason })?;
        let private = PrivateKeyDer::from_pem_slice(&texts[1]).map_err(|error| file_error("--tls-key", key, &error))?;
        let pair = |source| Error::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(pair)?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, private).map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), expires, texts })
    }
}

/// When a certificate expires, in seconds since 1970; why it cannot be served, where it has.
fn expiry(certificate: &CertificateDer) -> Result<i64, String> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| format!("it is no certificate ({error})"))?;
    let validity = certificate.validity();
    if validity.is_valid() {
        Ok(validity.not_after.timestamp())
    } else {
        Err(format!("it is valid from {} to {}", validity.not_before, validity.not_after))
    }
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>()?;
    if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) }
}

fn file_error(option: &'static str, file: &Path, error: &pem::Error) -> Error {
    let reason = match error {
        pem::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => "there is no such file".to_owned(),
        pem::Error::NoItemsFound => "it holds none in PEM".to_owned(),
        other => other.to_string(),
    };
    Error::File { option, file: file.to_owned(), reason }
}
