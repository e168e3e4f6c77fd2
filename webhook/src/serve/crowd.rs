//! Who is connected: at most so many. Who comes then takes the place of somebody who is idle: first of those who never got an
//! answer, then of those who got their last one longest ago. So whoever only holds connections open does not keep the API
//! server out, and its own connections are the last to go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// The connections of a listener.
#[derive(Debug)]
pub(super) struct Crowd {
    at_most: usize,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    next: u64,
    by_number: BTreeMap<u64, Arc<Member>>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Member {
    activity: Mutex<Activity>,
    leave: Notify,
}

#[derive(Debug)]
struct Activity {
    /// Requests that have come and are not answered yet.
    open: usize,
    /// Those of them that have come whole.
    whole: usize,
    was_answered: bool,
    last: Instant,
}

/// A connection's place, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    member: Arc<Member>,
}

/// A request, from its head to its answer.
#[derive(Debug)]
pub(super) struct Open {
    member: Arc<Member>,
    is_whole: bool,
}

impl Crowd {
    pub(super) fn new(at_most: usize) -> Arc<Self> {
        Arc::new(Self { at_most, members: Mutex::default() })
    }

    /// Makes place for one more; `None` where everybody is busy.
    pub(super) fn join(self: &Arc<Self>) -> Option<Place> {
        let mut members = self.members();
        if members.by_number.len() >= self.at_most && !members.send_one_away() {
            return None;
        }
        let member = Arc::new(Member::new());
        let number = members.next;
        members.next += 1;
        members.by_number.insert(number, member.clone());
        drop(members);
        Some(Place { crowd: self.clone(), number, member })
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// Sends away the one that is missed least. Returns whether there was one.
    fn send_one_away(&mut self) -> bool {
        let idle = self.by_number.iter().filter_map(|(number, member)| {
            let activity = member.activity();
            (activity.whole == 0).then_some((activity.was_answered, activity.last, *number))
        });
        let Some((.., number)) = idle.min() else { return false };
        if let Some(member) = self.by_number.remove(&number) {
            member.leave.notify_one();
        }
        true
    }
}

impl Member {
    fn new() -> Self {
        let activity = Activity { open: 0, whole: 0, was_answered: false, last: Instant::now() };
        Self { activity: Mutex::new(activity), leave: Notify::new() }
    }

    /// Takes note of a request whose head has come.
    pub(super) fn open(self: &Arc<Self>) -> Open {
        self.activity().open += 1;
        Open { member: self.clone(), is_whole: false }
    }

    /// Whether a request has come that is not answered yet, or was.
    pub(super) fn has_asked(&self) -> bool {
        let activity = self.activity();
        activity.open > 0 || activity.was_answered
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Takes note that all of the request has come: its connection is busy now.
    pub(super) fn is_whole(&mut self) {
        if !self.is_whole {
            self.member.activity().whole += 1;
            self.is_whole = true;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut activity = self.member.activity();
        activity.open -= 1;
        activity.whole -= usize::from(self.is_whole);
        activity.was_answered |= self.is_whole;
        activity.last = Instant::now();
    }
}

impl Place {
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// Whether a request is being read or answered.
    pub(super) fn has_open_request(&self) -> bool {
        self.member.activity().open > 0
    }

    /// Waits until this connection is to give way to another.
    pub(super) async fn until_sent_away(&self) {
        self.member.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.members().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    async fn is_sent_away(place: &Place) -> bool {
        timeout(Duration::ZERO, place.until_sent_away()).await.is_ok()
    }

    /// Has a connection answered.
    fn answer(place: &Place) {
        place.member().open().is_whole();
    }

    #[tokio::test]
    async fn who_was_never_answered_gives_way_first_and_who_is_busy_never() {
        let crowd = Crowd::new(4);
        let [busy, served, silent, trickling] = std::array::from_fn(|_| crowd.join().unwrap());
        let mut answering = busy.member().open();
        answering.is_whole();
        answer(&served);
        let _never_whole = trickling.member().open();
        let fifth = crowd.join().unwrap();
        assert!(is_sent_away(&silent).await, "it came before the one that trickles");
        let sixth = crowd.join().unwrap();
        assert!(is_sent_away(&trickling).await);
        answer(&fifth);
        answer(&sixth);
        let _seventh = crowd.join().unwrap();
        assert!(is_sent_away(&served).await, "it was answered longest ago");
        assert!(!is_sent_away(&busy).await);
    }

    #[tokio::test]
    async fn where_everybody_is_busy_nobody_comes_in() {
        let crowd = Crowd::new(1);
        let first = crowd.join().unwrap();
        let mut open = first.member().open();
        open.is_whole();
        assert!(crowd.join().is_none());
        drop(open);
        assert!(crowd.join().is_some());
        assert!(is_sent_away(&first).await);
    }

    #[tokio::test]
    async fn a_place_that_is_given_back_is_free() {
        let crowd = Crowd::new(1);
        drop(crowd.join());
        let second = crowd.join().unwrap();
        assert!(!is_sent_away(&second).await);
    }
}
