//! Limits how many tasks, such as starts of proxies, run at a time, in the order in which they were requested.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::{Error, Result};

/// Runs a few tasks at a time, in the order in which they were requested.
#[derive(Debug)]
pub struct StartLimiter {
    permits: Semaphore,
    /// How long a task keeps the next from its start.
    limit: Duration,
    /// Tasks that run or wait.
    queued: AtomicUsize,
}

impl StartLimiter {
    /// Admits `at_a_time` tasks. After `limit`, the next begins beside a task that still runs.
    #[must_use]
    pub fn new(at_a_time: usize, limit: Duration) -> Self {
        Self { permits: Semaphore::new(at_a_time), limit, queued: AtomicUsize::new(0) }
    }

    /// Runs a task when its turn comes. Fails if that is not within `wait_limit`.
    pub async fn run<T>(&self, wait_limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        let ahead = self.queued.fetch_add(1, Ordering::Relaxed);
        // The caller may drop this future at any point.
        let _queued = Queued(&self.queued);
        let Ok(permit) = timeout(wait_limit, self.permits.acquire()).await else {
            return Err(Error::new(format_args!("not started within {wait_limit:?}: {ahead} starts were ahead of it")));
        };
        let permit = permit?;
        let mut work = pin!(work);
        if let Ok(result) = timeout(self.limit, &mut work).await {
            return result;
        }
        drop(permit);
        work.await
    }
}

struct Queued<'a>(&'a AtomicUsize);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::{Instant, sleep};

    use super::*;

    const START: Duration = Duration::from_secs(30);
    const WAIT_LIMIT: Duration = Duration::from_secs(100);

    #[tokio::test(start_paused = true)]
    async fn starts_at_once_get_turns_in_order() {
        let (limiter, began) = (Arc::new(StartLimiter::new(2, START)), Instant::now());
        let starts: Vec<_> = (0..10)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                tokio::spawn(async move {
                    let start = async {
                        sleep(START).await;
                        Ok(())
                    };
                    limiter.run(WAIT_LIMIT, start).await.map(|()| began.elapsed().as_secs())
                })
            })
            .collect();
        let mut ends = Vec::new();
        for start in starts {
            ends.push(start.await.unwrap().map_err(|error| error.to_string()));
        }
        let late = |ahead| Err(format!("not started within 100s: {ahead} starts were ahead of it"));
        let expected = [30_u64, 30, 60, 60, 90, 90, 120, 120].map(Ok).into_iter().chain([late(8), late(9)]);
        assert_eq!(ends, expected.collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_start_gives_its_turn_to_the_next() {
        let limiter = StartLimiter::new(1, START);
        assert!(timeout(START, limiter.run(WAIT_LIMIT, std::future::pending::<Result<()>>())).await.is_err());
        assert_eq!(limiter.run(WAIT_LIMIT, async { Ok(1) }).await, Ok(1));
        assert_eq!(limiter.queued.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_that_hang_take_no_turn_for_long() {
        let (limiter, began) = (StartLimiter::new(2, START), Instant::now());
        let hang = || limiter.run(WAIT_LIMIT, std::future::pending::<Result<()>>());
        let next = limiter.run(WAIT_LIMIT, async { Ok(began.elapsed()) });
        tokio::select! {
            biased;
            never = futures::future::join(hang(), hang()) => panic!("{never:?}"),
            elapsed = next => assert_eq!(elapsed, Ok(START)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn forty_starts_that_hang_leave_the_next_its_turn() {
        for (hanging, is_in_time) in [(40, true), (48, false)] {
            let limiter = StartLimiter::new(4, Duration::from_secs(15));
            let hang = || limiter.run(Duration::MAX, std::future::pending::<Result<()>>());
            let next = limiter.run(Duration::from_secs(170), async { Ok(()) });
            tokio::select! {
                biased;
                never = futures::future::join_all((0..hanging).map(|_| hang())) => panic!("{never:?}"),
                result = next => assert_eq!(result.is_ok(), is_in_time, "{hanging}: {result:?}"),
            }
        }
    }
}
