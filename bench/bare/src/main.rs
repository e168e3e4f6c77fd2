//! Answers every request with the same bytes, over TLS, once it has read the body: what is left of the webhook's cost when
//! nothing is decided.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

/// The webhook's, so that what differs is the webhook's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, cert, key, answer] = words.as_slice() else {
        return Err("usage: bare ADDRESS:PORT CERTIFICATE KEY ANSWER".into());
    };
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<_, _>>()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (tls, answer) = (TlsAcceptor::from(Arc::new(config)), Bytes::from(std::fs::read(answer)?));
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (tls, answer) = (tls.clone(), answer.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(|request| reply(request, answer.clone()));
            // A client that goes away is nobody's concern here.
            let _ = Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn reply(request: Request<Incoming>, answer: Bytes) -> Result<Response<Full<Bytes>>, Infallible> {
    // What is left of a body that broke off is answered all the same.
    let _ = request.into_body().collect().await;
    Ok(Response::new(Full::new(answer)))
}
