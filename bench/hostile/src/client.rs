//! HTTP/1.1 over TLS, as little of it as is needed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// How long a client waits for an answer: as long as an API server waits for a webhook at most.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) type Connection = StreamOwned<ClientConnection, TcpStream>;

/// What connections to the webhook are opened with.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, certificate: CertificateDer<'static>) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate)?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address, config: Arc::new(config) })
    }

    /// A connection whose TLS handshake is not done yet.
    pub(crate) fn connect(&self) -> io::Result<Connection> {
        let name = ServerName::try_from("localhost").expect("it is a DNS name");
        let session = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(StreamOwned::new(session, stream))
    }
}

/// The admission review of a pod's creation, of the pod in JSON.
pub(crate) fn review_of(pod: &str) -> Vec<u8> {
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1f","kind":{{"group":"","version":"v1","kind":"Pod"}},"resource":{{"group":"","version":"v1","resource":"pods"}},"namespace":"team","operation":"CREATE","object":{pod}}}}}"#
    )
    .into_bytes()
}

/// The head of a request with a body of this length.
pub(crate) fn head(length: usize) -> String {
    format!(
        "POST /mutate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Sends a review, and reads its whole response. Returns the status.
pub(crate) fn ask(connection: &mut Connection, review: &[u8]) -> io::Result<u16> {
    connection.write_all(&[head(review.len()).as_bytes(), review].concat())?;
    let (mut response, mut part) = (vec![], vec![0; 16 << 10]);
    loop {
        let length = connection.read(&mut part)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        response.extend_from_slice(&part[..length]);
        let Some(end) = response.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
        let announced = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
        let mut rest = vec![0; announced.unwrap_or(0_usize).saturating_sub(response.len() - end - 4)];
        connection.read_exact(&mut rest)?;
        return head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData.into());
    }
}
