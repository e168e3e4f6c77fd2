//! The server's certificate from files, and the TLS it is offered with.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

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

/// TLS 1.2 and 1.3, offering HTTP/2 and HTTP/1.1, with the certificate and key of two files.
pub(super) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let chain = certificates(cert).map_err(|error| file_error("--tls-cert", cert, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error("--tls-key", key, &error))?;
    let pair = |source| Error::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(pair)?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, private).map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(file)?.collect::<Result<_, _>>()?;
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
