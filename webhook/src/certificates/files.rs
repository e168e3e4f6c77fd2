//! Reads files that another program renews, such as those of a mounted Secret, and reloads them when they change.

use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use contract::error_chain::display_chain;
use tokio::time::sleep;

use super::Unusable;
use super::serving_cert;
use crate::metrics::Metrics;

/// Pause between two reads. The kubelet updates mounted Secrets within a minute or two.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Reports a file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{option} {} cannot be used: {source}", .file.display())]
pub struct Error {
    /// Command-line option that names the file.
    option: &'static str,
    file: PathBuf,
    source: serving_cert::Error,
}

/// Parses the contents of the files into one value.
type Parse<T, const N: usize> = fn([&[u8]; N]) -> Result<T, Unusable>;

/// Holds files that belong together, and their contents when they could last be used.
#[derive(Debug)]
pub(crate) struct WatchedFiles<T, const N: usize> {
    /// Each file with the option that names it.
    files: [(&'static str, PathBuf); N],
    parse: Parse<T, N>,
    contents: Vec<Vec<u8>>,
}

impl<T, const N: usize> WatchedFiles<T, N> {
    /// Loads the files for the first time.
    pub(crate) fn load(files: [(&'static str, PathBuf); N], parse: Parse<T, N>) -> Result<(Self, T), Error> {
        let mut watched = Self { files, parse, contents: vec![] };
        let value = watched.load_if_changed()?.expect("any contents differ from none");
        Ok((watched, value))
    }

    /// Applies the value of the files whenever they change. While they cannot be used, the previous value stays in use.
    pub(crate) async fn reload_on_change(mut self, apply: impl Fn(T), metrics: Arc<Metrics>) -> Infallible {
        let mut last_error = None;
        loop {
            sleep(READ_INTERVAL).await;
            match self.load_if_changed() {
                Ok(changed) => {
                    last_error = None;
                    changed.into_iter().for_each(&apply);
                }
                Err(error) => {
                    let error = display_chain(&error);
                    if last_error.as_ref() != Some(&error) {
                        tracing::warn!(error, "the certificate before stays in use");
                        metrics.certificate_failed();
                    }
                    last_error = Some(error);
                }
            }
        }
    }

    fn load_if_changed(&mut self) -> Result<Option<T>, Error> {
        let contents = self.read()?;
        if contents == self.contents {
            return Ok(None);
        }
        let texts = std::array::from_fn(|index| contents[index].as_slice());
        let value = (self.parse)(texts).map_err(|(index, source)| self.error(index, source))?;
        self.contents = contents;
        Ok(Some(value))
    }

    fn read(&self) -> Result<Vec<Vec<u8>>, Error> {
        let read = |(index, (_, file)): (usize, &(&str, PathBuf))| {
            fs::read(file).map_err(|error| self.error(index, error.into()))
        };
        self.files.iter().enumerate().map(read).collect()
    }

    fn error(&self, index: usize, source: serving_cert::Error) -> Error {
        let (option, file) = self.files[index].clone();
        Error { option, file, source }
    }
}
