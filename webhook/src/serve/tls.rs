//! The certificate that connections are offered, which may change while they are.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::certificates::pair::{certificates, now, validity};
use crate::metrics::Metrics;

/// Why a certificate and a key cannot be served.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// The certificate's text holds none, or none that is valid now.
    Certificate(String),
    /// The key's text holds none.
    Key(String),
    /// They do not go together.
    Pair(rustls::Error),
}

/// The certificate that is served, once there is one.
#[derive(Debug)]
pub(crate) struct Certificate {
    served: ArcSwapOption<Served>,
    offered: Notify,
    metrics: Arc<Metrics>,
}

/// A certificate and key that can be served.
#[derive(Debug)]
pub(crate) struct Served {
    config: Arc<ServerConfig>,
    /// Seconds since 1970.
    expires: i64,
}

impl Certificate {
    pub(crate) fn none_yet(metrics: Arc<Metrics>) -> Self {
        Self { served: ArcSwapOption::empty(), offered: Notify::new(), metrics }
    }

    /// Offers this to new connections.
    pub(crate) fn offer(&self, served: Served) {
        tracing::info!(expires = served.expires, "serving a new certificate");
        self.metrics.certificate(served.expires);
        self.served.store(Some(Arc::new(served)));
        // Kept where nobody waits yet.
        self.offered.notify_one();
    }

    /// Waits until there is one to offer.
    pub(crate) async fn until_offered(&self) {
        while self.served.load().is_none() {
            self.offered.notified().await;
        }
    }

    /// What a new connection is offered.
    pub(super) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.served.load().as_ref().map(|served| TlsAcceptor::from(served.config.clone()))
    }

    /// Why clients would not take it, if so.
    pub(super) fn trouble(&self) -> Option<&'static str> {
        match self.served.load().as_ref() {
            None => Some("there is no certificate yet"),
            Some(served) if served.expires <= now() => Some("the certificate has expired"),
            Some(_) => None,
        }
    }
}

impl Served {
    /// TLS 1.2 and 1.3, offering HTTP/2 and HTTP/1.1, with a certificate and key in PEM.
    pub(crate) fn new(cert: &[u8], key: &[u8]) -> Result<Self, Unusable> {
        let chain = certificates(cert).map_err(|error| Unusable::Certificate(in_words(&error)))?;
        let validity = validity(&chain[0]).map_err(Unusable::Certificate)?;
        if !validity.holds(now()) {
            return Err(Unusable::Certificate(format!("it is valid {validity}")));
        }
        let private = PrivateKeyDer::from_pem_slice(key).map_err(|error| Unusable::Key(in_words(&error)))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Unusable::Pair)?;
        let mut config = builder.with_no_client_auth().with_single_cert(chain, private).map_err(Unusable::Pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), expires: validity.ends })
    }
}

fn in_words(error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => "it holds none in PEM".to_owned(),
        other => other.to_string(),
    }
}
