//! Limits how many tasks, such as starts of proxies, run at a time, in the order in which they were requested.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::{Error, Result};

/// Gives turns in the order in which they were asked for.
#[derive(Debug)]
pub struct Turns {
    permits: Semaphore,
    /// How long a turn lasts at most.
    limit: Duration,
    /// Tasks that run or wait.
    asked: AtomicUsize,
}

impl Turns {
    /// Admits `at_a_time` tasks. After `limit`, the next begins beside a task that still runs.
    #[must_use]
    pub fn new(at_a_time: usize, limit: Duration) -> Self {
        Self { permits: Semaphore::new(at_a_time), limit, asked: AtomicUsize::new(0) }
    }

    /// Waits for a turn and begins the work in it. Fails if the turn does not come within `patience`.
    pub async fn take<T>(&self, patience: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        let before = self.asked.fetch_add(1, Ordering::Relaxed);
        // The caller may drop this future at any point.
        let _asked = Asked(&self.asked);
        let Ok(permit) = timeout(patience, self.permits.acquire()).await else {
            return Err(Error::new(format_args!("not started within {patience:?}: {before} starts were ahead of it")));
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

struct Asked<'a>(&'a AtomicUsize);

impl Drop for Asked<'_> {
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
    const PATIENCE: Duration = Duration::from_secs(100);

    #[tokio::test(start_paused = true)]
    async fn starts_at_once_get_turns_in_order() {
        let (turns, began) = (Arc::new(Turns::new(2, START)), Instant::now());
        let starts: Vec<_> = (0..10)
            .map(|_| {
                let turns = Arc::clone(&turns);
                tokio::spawn(async move {
                    let start = async {
                        sleep(START).await;
                        Ok(())
                    };
                    turns.take(PATIENCE, start).await.map(|()| began.elapsed().as_secs())
                })
            })
            .collect();
        let mut ends = Vec::new();
        for start in starts {
            ends.push(start.await.unwrap().map_err(|error| error.to_string()));
        }
        let late = |before| Err(format!("not started within 100s: {before} starts were ahead of it"));
        let expected = [30_u64, 30, 60, 60, 90, 90, 120, 120].map(Ok).into_iter().chain([late(8), late(9)]);
        assert_eq!(ends, expected.collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_start_gives_its_turn_to_the_next() {
        let turns = Turns::new(1, START);
        assert!(timeout(START, turns.take(PATIENCE, std::future::pending::<Result<()>>())).await.is_err());
        assert_eq!(turns.take(PATIENCE, async { Ok(1) }).await, Ok(1));
        assert_eq!(turns.asked.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_that_hang_take_no_turn_for_long() {
        let (turns, began) = (Turns::new(2, START), Instant::now());
        let hang = || turns.take(PATIENCE, std::future::pending::<Result<()>>());
        let next = turns.take(PATIENCE, async { Ok(began.elapsed()) });
        tokio::select! {
            biased;
            never = futures::future::join(hang(), hang()) => panic!("{never:?}"),
            elapsed = next => assert_eq!(elapsed, Ok(START)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn forty_starts_that_hang_leave_the_next_its_turn() {
        for (hanging, is_in_time) in [(40, true), (48, false)] {
            let turns = Turns::new(4, Duration::from_secs(15));
            let hang = || turns.take(Duration::MAX, std::future::pending::<Result<()>>());
            let next = turns.take(Duration::from_secs(170), async { Ok(()) });
            tokio::select! {
                biased;
                never = futures::future::join_all((0..hanging).map(|_| hang())) => panic!("{never:?}"),
                result = next => assert_eq!(result.is_ok(), is_in_time, "{hanging}: {result:?}"),
            }
        }
    }
}
