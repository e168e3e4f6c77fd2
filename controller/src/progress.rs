//! Tells whether the API server answers this replica at all.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Limits the time in which the API server answers nothing that is asked.
const STALLED_AFTER: Duration = Duration::from_secs(50);

/// Counts what is being asked.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    asking: u32,
    /// Is the time of the last answer, or of the first question after it, while something is asked.
    since: Option<Instant>,
    /// Adds up earlier waits since the last answer. Time in which nothing is asked does not count.
    waited: Duration,
}

impl Progress {
    /// Notes that something is asked.
    pub(crate) fn begin(&self) {
        self.update(|state| {
            state.asking += 1;
            state.since.get_or_insert_with(Instant::now);
        });
    }

    /// Notes an answer, while more is asked.
    pub(crate) fn answered(&self) {
        self.update(State::answered);
    }

    /// Notes that this is over.
    pub(crate) fn end(&self, is_answered: bool) {
        self.update(|state| {
            if is_answered {
                state.answered();
            }
            state.asking = state.asking.saturating_sub(1);
            if state.asking == 0 {
                state.waited = state.waited();
                state.since = None;
            }
        });
    }

    /// Forgets what was asked: the term has ended.
    pub(crate) fn reset(&self) {
        self.update(|state| *state = State::default());
    }

    /// Returns an error, with its reason, if a new process might be answered where this one is not.
    pub(crate) fn reason_to_restart(&self) -> Result<(), String> {
        let waited = self.update(|state| state.waited());
        if waited <= STALLED_AFTER {
            return Ok(());
        }
        Err(format!("the API server has answered nothing for {} s", waited.as_secs()))
    }

    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn answered(&mut self) {
        (self.since, self.waited) = (self.since.map(|_| Instant::now()), Duration::ZERO);
    }

    fn waited(&self) -> Duration {
        self.waited + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const ALMOST: Duration = Duration::from_secs(49);

    #[tokio::test(start_paused = true)]
    async fn only_a_server_that_answers_nothing_is_a_stall() {
        let progress = Progress::default();
        advance(Duration::from_hours(1)).await;
        assert_eq!(progress.reason_to_restart(), Ok(()), "nothing was asked");
        progress.begin();
        progress.begin();
        advance(ALMOST).await;
        progress.end(true);
        advance(ALMOST).await;
        assert_eq!(progress.reason_to_restart(), Ok(()), "another question was answered meanwhile");
        // It is given up, and asked again.
        progress.end(false);
        advance(Duration::from_hours(1)).await;
        assert_eq!(progress.reason_to_restart(), Ok(()), "nothing was asked meanwhile");
        progress.begin();
        advance(Duration::from_secs(2)).await;
        let reason = progress.reason_to_restart().unwrap_err();
        assert_eq!(reason, "the API server has answered nothing for 51 s");
        progress.end(true);
        advance(Duration::from_hours(1)).await;
        assert_eq!(progress.reason_to_restart(), Ok(()));
    }
}
