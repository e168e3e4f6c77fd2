//! A certificate, its key, and the authority that signed it, in PEM: made, and read.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// How much earlier than now a certificate begins, for clocks that are behind ours.
const EARLIER: Duration = Duration::from_mins(5);

/// A certificate for the server, signed by an authority whose key nobody has any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The authority's certificate.
    pub(crate) ca: String,
    /// The server's certificate.
    pub(crate) cert: String,
    /// The server's private key.
    pub(crate) key: String,
}

impl Pair {
    /// Whether the key is the certificate's.
    pub(crate) fn is_whole(&self) -> bool {
        let Ok(chain) = certificates(self.cert.as_bytes()) else { return false };
        let Ok(key) = PrivateKeyDer::from_pem_slice(self.key.as_bytes()) else { return false };
        CertifiedKey::from_der(chain, key, &ring::default_provider()).is_ok()
    }
}

/// From when to when a certificate is valid, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) begins: i64,
    pub(crate) ends: i64,
}

impl Validity {
    /// Whether it is valid at a time.
    pub(crate) fn holds(self, now: i64) -> bool {
        self.begins <= now && now < self.ends
    }

    /// When two thirds of it are over.
    pub(crate) fn renewal(self) -> i64 {
        self.begins + (self.ends - self.begins) / 3 * 2
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let [begins, ends] = [self.begins, self.ends].map(|seconds| humantime::format_rfc3339_seconds(at(seconds)));
        write!(f, "from {begins} to {ends}")
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// Makes a certificate for a DNS name, valid from now on, and an authority for it alone.
pub(crate) fn issue(name: &str, now: i64, valid_for: Duration) -> Result<Pair, rcgen::Error> {
    let since_1970 = Duration::from_secs(u64::try_from(now).unwrap_or_default());
    let not_before = date_time_ymd(1970, 1, 1) + since_1970.saturating_sub(EARLIER.min(valid_for / 10));
    let not_after = date_time_ymd(1970, 1, 1) + since_1970 + valid_for;
    let called = |name: &str| {
        let mut called = DistinguishedName::new();
        called.push(DnType::CommonName, name);
        called
    };

    let mut authority = CertificateParams::default();
    (authority.not_before, authority.not_after) = (not_before, not_after);
    authority.distinguished_name = called("istio-aux CA");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_key = KeyPair::generate()?;
    let ca = authority.self_signed(&authority_key)?.pem();

    let mut server = CertificateParams::new(vec![name.to_owned()])?;
    (server.not_before, server.not_after) = (not_before, not_after);
    server.distinguished_name = called("istio-aux");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Which of two authorities of the same name signed it.
    server.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let cert = server.signed_by(&key, &Issuer::new(authority, authority_key))?.pem();
    Ok(Pair { ca, cert, key: key.serialize_pem() })
}

/// The certificates of a text in PEM.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>()?;
    if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) }
}

/// When a certificate is valid.
pub(crate) fn validity(certificate: &CertificateDer) -> Result<Validity, String> {
    let validity = parse(certificate)?.validity().clone();
    Ok(Validity { begins: validity.not_before.timestamp(), ends: validity.not_after.timestamp() })
}

/// When the first certificate of a text is valid; `None` where there is none that can be read.
pub(crate) fn validity_of_first(text: &str) -> Option<Validity> {
    validity(certificates(text.as_bytes()).ok()?.first()?).ok()
}

/// Whether the first certificate of a text is for a DNS name.
pub(crate) fn is_for(text: &str, name: &str) -> bool {
    let Ok(chain) = certificates(text.as_bytes()) else { return false };
    let Ok(certificate) = parse(&chain[0]) else { return false };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|general| matches!(general, GeneralName::DNSName(dns) if *dns == name))
}

fn parse<'c>(certificate: &'c CertificateDer) -> Result<X509Certificate<'c>, String> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| format!("it is no certificate ({error})"))?;
    Ok(certificate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn a_certificate_is_for_its_name_and_time() {
        let pair = issue("istio-aux.team.svc", NOW, Duration::from_hours(1)).unwrap();
        assert!(is_for(&pair.cert, "istio-aux.team.svc"));
        assert!(!is_for(&pair.cert, "istio-aux.other.svc"));
        let other = issue("istio-aux.team.svc", NOW, Duration::from_hours(1)).unwrap();
        assert!(pair.is_whole() && !Pair { key: other.key, ..pair.clone() }.is_whole());
        for text in [&pair.cert, &pair.ca] {
            let validity = validity_of_first(text).unwrap();
            assert_eq!(validity, Validity { begins: NOW - 300, ends: NOW + 3600 });
            assert!(validity.holds(NOW) && !validity.holds(NOW + 3600));
            assert_eq!(validity.renewal(), NOW - 300 + 2600);
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_validity() {
        for text in ["", "rubbish", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(validity_of_first(text), None, "{text:?}");
            assert!(!is_for(text, "istio-aux.team.svc"), "{text:?}");
        }
    }
}
