//! Issues and reads a certificate, its key, and the CA that signed it, all in PEM.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Reports a certificate or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is no such file")]
    NoFile,
    #[error(transparent)]
    Read(io::Error),
    #[error("it holds none in PEM")]
    Empty,
    #[error(transparent)]
    NotPem(pem::Error),
    #[error("it is not a certificate ({0})")]
    NotACertificate(X509Error),
    #[error("it is valid {0}")]
    NotValidNow(Validity),
    #[error("it does not belong to the certificate ({0})")]
    OtherKey(rustls::Error),
    #[error(transparent)]
    NotACa(Box<dyn std::error::Error + Send + Sync>),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound { Self::NoFile } else { Self::Read(error) }
    }
}

impl From<pem::Error> for Error {
    fn from(error: pem::Error) -> Self {
        if matches!(error, pem::Error::NoItemsFound) { Self::Empty } else { Self::NotPem(error) }
    }
}

/// Holds the server's certificate, in PEM. The key of the CA that signed it is discarded after signing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServingCert {
    /// CA certificate.
    pub(crate) ca: String,
    /// Server certificate.
    pub(crate) cert: String,
    /// Private key of the server certificate.
    pub(crate) key: String,
}

impl ServingCert {
    /// Returns whether the key belongs to the certificate.
    pub(crate) fn key_matches(&self) -> bool {
        let Ok(chain) = certificates(self.cert.as_bytes()) else { return false };
        let Ok(key) = PrivateKeyDer::from_pem_slice(self.key.as_bytes()) else { return false };
        CertifiedKey::from_der(chain, key, &ring::default_provider()).is_ok()
    }
}

/// Holds the time in which a certificate is valid, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

impl Validity {
    /// Returns whether the certificate is valid at this time.
    pub(crate) fn contains(self, now: i64) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Returns the time at which two thirds of the validity are over.
    pub(crate) fn renew_at(self) -> i64 {
        self.not_before + (self.not_after - self.not_before) / 3 * 2
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let [from, to] =
            [self.not_before, self.not_after].map(|seconds| humantime::format_rfc3339_seconds(at(seconds)));
        write!(f, "from {from} to {to}")
    }
}

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// Issues a certificate for a DNS name, by a CA of its own. It is valid from a tenth of its time before now, because other clocks may
/// be behind this one: one that is not valid yet can neither be served nor trusted.
pub(crate) fn issue(name: &str, now: i64, valid_for: Duration) -> Result<ServingCert, rcgen::Error> {
    let since_1970 = Duration::from_secs(u64::try_from(now).unwrap_or_default());
    let not_before = date_time_ymd(1970, 1, 1) + since_1970.saturating_sub(valid_for / 10);
    let not_after = date_time_ymd(1970, 1, 1) + since_1970 + valid_for;
    let common_name = |name: &str| {
        let mut names = DistinguishedName::new();
        names.push(DnType::CommonName, name);
        names
    };

    let mut ca_params = CertificateParams::default();
    (ca_params.not_before, ca_params.not_after) = (not_before, not_after);
    ca_params.distinguished_name = common_name("istio-aux CA");
    ca_params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca_params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca_key = KeyPair::generate()?;
    let ca = ca_params.self_signed(&ca_key)?.pem();

    let mut server = CertificateParams::new(vec![name.to_owned()])?;
    (server.not_before, server.not_after) = (not_before, not_after);
    server.distinguished_name = common_name("istio-aux");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // All CAs have the same name. The key identifier says which one signed the certificate.
    server.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let cert = server.signed_by(&key, &Issuer::new(ca_params, ca_key))?.pem();
    Ok(ServingCert { ca, cert, key: key.serialize_pem() })
}

/// Returns the certificates of a PEM text, at least one.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>()?;
    if chain.is_empty() { Err(Error::Empty) } else { Ok(chain) }
}

/// Returns the validity of a certificate.
pub(crate) fn validity(certificate: &CertificateDer) -> Result<Validity, Error> {
    let validity = parse(certificate)?.validity().clone();
    Ok(Validity { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() })
}

/// Returns the validity of the first certificate in a PEM text; `None` if it cannot be parsed.
pub(crate) fn validity_of_first(text: &str) -> Option<Validity> {
    validity(certificates(text.as_bytes()).ok()?.first()?).ok()
}

/// Returns whether the first certificate in a PEM text is for this DNS name.
pub(crate) fn is_for(text: &str, name: &str) -> bool {
    let Ok(chain) = certificates(text.as_bytes()) else { return false };
    let Ok(certificate) = parse(&chain[0]) else { return false };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|general| matches!(general, GeneralName::DNSName(dns) if *dns == name))
}

fn parse<'c>(certificate: &'c CertificateDer) -> Result<X509Certificate<'c>, Error> {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map(|(_, certificate)| certificate).map_err(|error| Error::NotACertificate(error.into()))
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::RootCertStore;
    use tokio_rustls::rustls::client::WebPkiServerVerifier;
    use tokio_rustls::rustls::client::danger::ServerCertVerifier;
    use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn issued_certificate_has_its_name_key_and_validity() {
        let cert = issue("istio-aux.team.svc", NOW, Duration::from_hours(1)).unwrap();
        assert!(is_for(&cert.cert, "istio-aux.team.svc"));
        assert!(!is_for(&cert.cert, "istio-aux.other.svc"));
        let other = issue("istio-aux.team.svc", NOW, Duration::from_hours(1)).unwrap();
        assert!(cert.key_matches() && !ServingCert { key: other.key, ..cert.clone() }.key_matches());
        for text in [&cert.cert, &cert.ca] {
            let validity = validity_of_first(text).unwrap();
            assert_eq!(validity, Validity { not_before: NOW - 360, not_after: NOW + 3600 });
            assert!(validity.contains(NOW) && !validity.contains(NOW + 3600));
            assert_eq!(validity.renew_at(), NOW - 360 + 2640);
        }
    }

    #[test]
    fn issued_certificate_is_a_servers_by_its_ca_alone() {
        let (cert, other) = [(); 2].map(|()| issue("istio-aux.team.svc", NOW, Duration::from_hours(1)).unwrap()).into();
        let verified = |cas: &[&str], name: &'static str| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(cas.concat().as_bytes()).unwrap());
            let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), ring::default_provider().into());
            let chain = certificates(cert.cert.as_bytes()).unwrap();
            let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW.unsigned_abs()));
            let name = ServerName::try_from(name).unwrap();
            verifier.build().unwrap().verify_server_cert(&chain[0], &[], &name, &[], now).is_ok()
        };
        assert!(verified(&[&other.ca, &cert.ca], "istio-aux.team.svc"));
        assert!(!verified(&[&other.ca], "istio-aux.team.svc"));
        assert!(!verified(&[&cert.ca], "istio-aux.other.svc"));
    }

    #[test]
    fn text_without_a_certificate_has_no_validity() {
        for text in ["", "rubbish", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(validity_of_first(text), None, "{text:?}");
            assert!(!is_for(text, "istio-aux.team.svc"), "{text:?}");
        }
    }
}
