//! Supervises the server's tasks.

use std::convert::Infallible;
use std::io;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, JoinSet};

use super::Error;

/// Holds the tasks that run for as long as the server. If one ends early, the server ends with an error.
#[derive(Default)]
pub(super) struct Tasks(JoinSet<(&'static str, Result<io::Result<()>, JoinError>)>);

impl Tasks {
    /// Supervises a task that has been spawned.
    pub(super) fn supervise(&mut self, task: &'static str, handle: JoinHandle<io::Result<()>>) {
        self.0.spawn(async move { (task, handle.await) });
    }

    /// Supervises a future that only ends when the server stops.
    pub(super) fn spawn(
        &mut self,
        task: &'static str,
        future: impl Future<Output = Infallible> + Send + 'static,
        mut stopped: watch::Receiver<()>,
    ) {
        let until_stopped = async move {
            tokio::select! {
                never = future => match never {},
                _ = stopped.changed() => Ok(()),
            }
        };
        self.supervise(task, tokio::spawn(until_stopped));
    }

    /// Waits until any task ends.
    pub(super) async fn first_end(&mut self) -> Error {
        match self.0.join_next().await {
            Some(Ok((task, Ok(Ok(()))))) => Error::TaskEnded { task, reason: "without an error".to_owned() },
            Some(Ok((task, Ok(Err(error))))) => Error::TaskEnded { task, reason: error.to_string() },
            Some(Ok((task, Err(error)))) => Error::TaskEnded { task, reason: error.to_string() },
            // Does not happen: the set is not empty, and its tasks only wait for others.
            Some(Err(_)) | None => std::future::pending().await,
        }
    }

    /// Waits until all tasks have ended.
    pub(super) async fn all_ends(mut self) {
        while let Some(end) = self.0.join_next().await {
            if let Ok((task, Err(error))) = end {
                tracing::error!(task, %error, "a task ended with an error");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn task_that_panics_ends_the_server_with_one_line() {
        let (_stop, stopped) = watch::channel(());
        let mut tasks = Tasks::default();
        tasks.spawn("the health listener", std::future::pending(), stopped.clone());
        tasks.spawn("the certificate rotator", async { panic!("no clock") }, stopped);
        let line = tasks.first_end().await.to_string();
        assert!(line.starts_with("the certificate rotator ended unexpectedly (task "), "{line}");
        assert!(line.contains("panicked with message \"no clock\""), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}
