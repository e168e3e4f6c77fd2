//! A certificate and key from two files that somebody else writes anew, as a mounted Secret is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::causes::with_causes;
use crate::metrics::Metrics;
use crate::serve::tls::{Certificate, Served, Unusable};

/// How often the files are read again. Mounted Secrets follow theirs within a minute or two.
const READ_EVERY: Duration = Duration::from_secs(1);

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read, or holds nothing that can be served.
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
        source: tokio_rustls::rustls::Error,
    },
}

/// The two files.
#[derive(Debug)]
pub(crate) struct Files {
    cert: PathBuf,
    key: PathBuf,
    /// What both held when they were last good.
    texts: [Vec<u8>; 2],
}

impl Files {
    /// Reads both, and what is to be served of them.
    pub(crate) fn read(cert: &Path, key: &Path) -> Result<(Self, Served), Error> {
        let mut files = Self { cert: cert.to_owned(), key: key.to_owned(), texts: Default::default() };
        files.texts = files.read_texts()?;
        let served = files.parse(&files.texts)?;
        Ok((files, served))
    }

    /// Has what the files hold served whenever that changes, and what was good before where it cannot be used.
    pub(crate) async fn follow(mut self, certificate: Arc<Certificate>, metrics: Arc<Metrics>) {
        let mut failed = None;
        loop {
            sleep(READ_EVERY).await;
            match self.parse_if_changed() {
                Ok(None) => failed = None,
                Ok(Some(served)) => {
                    certificate.offer(served);
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

    fn parse_if_changed(&mut self) -> Result<Option<Served>, Error> {
        let texts = self.read_texts()?;
        if texts == self.texts {
            return Ok(None);
        }
        let served = self.parse(&texts)?;
        self.texts = texts;
        Ok(Some(served))
    }

    /// What is to be served of what both files hold.
    fn parse(&self, [cert, key]: &[Vec<u8>; 2]) -> Result<Served, Error> {
        Served::new(cert, key).map_err(|unusable| match unusable {
            Unusable::Certificate(reason) => Self::file("--tls-cert", &self.cert, reason),
            Unusable::Key(reason) => Self::file("--tls-key", &self.key, reason),
            Unusable::Pair(source) => Error::Pair { cert: self.cert.clone(), key: self.key.clone(), source },
        })
    }

    fn read_texts(&self) -> Result<[Vec<u8>; 2], Error> {
        let read = |option, file: &Path| {
            fs::read(file).map_err(|error| {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                let reason = if is_missing { "there is no such file".to_owned() } else { error.to_string() };
                Self::file(option, file, reason)
            })
        };
        Ok([read("--tls-cert", &self.cert)?, read("--tls-key", &self.key)?])
    }

    fn file(option: &'static str, file: &Path, reason: String) -> Error {
        Error::File { option, file: file.to_owned(), reason }
    }
}
