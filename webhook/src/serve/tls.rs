//! Holds the TLS configuration of new connections. Its certificate, and the CA of clients, may change while the server runs.

use std::sync::Arc;

use contract::error_chain::display_chain;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::certificates::Unusable;
use crate::certificates::serving_cert::{Error, ServingCert, Validity, certificates, now, validity};
use crate::metrics::Metrics;

/// Holds the served certificate, once one is loaded, and the CA of clients, if they need a certificate.
#[derive(Debug)]
pub(crate) struct TlsReloader {
    state: watch::Sender<TlsState>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct TlsState {
    cert: Option<LoadedCert>,
    client_ca: Option<ClientCa>,
    /// Made from both, once there is a certificate.
    config: Option<Arc<ServerConfig>>,
}

/// Holds a certificate that can be served, with its key.
#[derive(Debug, Clone)]
pub(crate) struct LoadedCert {
    key: Arc<SingleCertAndKey>,
    validity: Validity,
}

/// Verifies that a client's certificate is signed by a CA.
#[derive(Debug, Clone)]
pub(crate) struct ClientCa(Arc<dyn ClientCertVerifier>);

impl TlsReloader {
    /// Returns a reloader without a certificate. Without a client CA every client is admitted.
    pub(crate) fn new(metrics: Arc<Metrics>, client_ca: Option<ClientCa>) -> Self {
        Self { state: watch::Sender::new(TlsState { cert: None, client_ca, config: None }), metrics }
    }

    /// Serves this certificate to new connections.
    pub(crate) fn reload(&self, cert: LoadedCert) {
        let Validity { not_before, not_after } = cert.validity;
        tracing::info!(expires = not_after, "serving a new certificate");
        self.metrics.certificate(not_before, not_after);
        self.update(|state| state.cert = Some(cert));
    }

    /// Serves a certificate of the Secret to new connections. Returns false if it cannot be served.
    pub(super) fn reload_stored(&self, cert: &ServingCert) -> bool {
        match LoadedCert::from_pem([cert.cert.as_bytes(), cert.key.as_bytes()]) {
            Ok(loaded) => {
                self.reload(loaded);
                true
            }
            Err((_, reason)) => {
                let reason = display_chain(&reason);
                tracing::warn!(reason, "the Secret's certificate cannot be served; the one before stays in use");
                self.metrics.certificate_failed();
                false
            }
        }
    }

    /// Admits only clients of this CA on new connections.
    pub(crate) fn reload_client_ca(&self, client_ca: ClientCa) {
        tracing::info!("admitting clients of a new CA");
        self.update(|state| state.client_ca = Some(client_ca));
    }

    fn update(&self, change: impl FnOnce(&mut TlsState)) {
        self.state.send_modify(|state| {
            change(state);
            state.config = state.cert.as_ref().map(|cert| server_config(cert, state.client_ca.as_ref()));
        });
    }

    /// Waits until a certificate is loaded.
    pub(crate) async fn wait_loaded(&self) {
        // The sender is part of `self`, so this does not fail.
        let _ = self.state.subscribe().wait_for(|state| state.config.is_some()).await;
    }

    /// Returns the acceptor of new connections, once a certificate is loaded.
    pub(super) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.state.borrow().config.clone().map(TlsAcceptor::from)
    }

    /// Returns why clients would not trust the server; `None` if they do.
    pub(super) fn not_ready_reason(&self) -> Option<&'static str> {
        match &self.state.borrow().cert {
            None => Some("no certificate is loaded yet"),
            Some(cert) if cert.validity.not_after <= now() => Some("the certificate has expired"),
            Some(_) => None,
        }
    }
}

/// Returns a configuration of TLS 1.2 and 1.3 with HTTP/1.1.
fn server_config(cert: &LoadedCert, client_ca: Option<&ClientCa>) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has the cipher suites of TLS 1.2 and 1.3");
    let builder = match client_ca {
        Some(ClientCa(verifier)) => builder.with_client_cert_verifier(verifier.clone()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(cert.key.clone());
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl LoadedCert {
    /// Loads a certificate with its chain, and its key, both in PEM.
    pub(crate) fn from_pem([cert, key]: [&[u8]; 2]) -> Result<Self, Unusable> {
        let chain = certificates(cert).map_err(|error| (0, error))?;
        let validity = validity(&chain[0]).map_err(|error| (0, error))?;
        if !validity.contains(now()) {
            return Err((0, Error::NotValidNow(validity)));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| (1, error.into()))?;
        let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| (1, Error::OtherKey(error)))?;
        Ok(Self { key: Arc::new(certified.into()), validity })
    }
}

impl ClientCa {
    /// Loads one or several CA certificates in PEM.
    pub(crate) fn from_pem([cas]: [&[u8]; 1]) -> Result<Self, Unusable> {
        let mut roots = RootCertStore::empty();
        for ca in certificates(cas).map_err(|error| (0, error))? {
            roots.add(ca).map_err(|error| (0, Error::NotACa(error.into())))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
        verifier.map(Self).map_err(|error| (0, Error::NotACa(error.into())))
    }
}
