//! Who is connected: at most so many, and who comes then takes the place of whoever has been idle for longest. So nobody
//! who only holds connections open keeps the API server out, and none is closed early that the API server may still use.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    open_requests: AtomicUsize,
    last_active: Mutex<Instant>,
    leave: Notify,
}

/// A connection's place, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    member: Arc<Member>,
}

/// A request that is being answered: its connection is not idle until this is dropped.
#[derive(Debug)]
pub(super) struct Busy(Arc<Member>);

impl Crowd {
    pub(super) fn new(at_most: usize) -> Arc<Self> {
        Arc::new(Self { at_most, members: Mutex::default() })
    }

    /// Makes place for one more.
    pub(super) fn join(self: &Arc<Self>) -> Place {
        let member = Arc::new(Member {
            open_requests: AtomicUsize::new(0),
            last_active: Mutex::new(Instant::now()),
            leave: Notify::new(),
        });
        let mut members = self.members();
        if members.by_number.len() >= self.at_most {
            members.send_away_the_idlest();
        }
        let number = members.next;
        members.next += 1;
        members.by_number.insert(number, member.clone());
        drop(members);
        Place { crowd: self.clone(), number, member }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    fn send_away_the_idlest(&mut self) {
        let idle = self.by_number.iter().filter(|(_, member)| member.open_requests.load(Ordering::Relaxed) == 0);
        let idlest = idle.min_by_key(|(_, member)| member.last_active()).map(|(number, _)| *number);
        if let Some(member) = idlest.and_then(|number| self.by_number.remove(&number)) {
            member.leave.notify_one();
        }
    }
}

impl Member {
    /// Takes note of a request.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.open_requests.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    fn last_active(&self) -> Instant {
        *self.last_active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.last_active.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.open_requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Place {
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
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

    #[tokio::test]
    async fn the_one_that_is_idle_for_longest_gives_way() {
        let crowd = Crowd::new(3);
        let (busy, idlest, last) = (crowd.join(), crowd.join(), crowd.join());
        let answering = busy.member().busy();
        drop(last.member().busy());
        let _fourth = crowd.join();
        assert!(is_sent_away(&idlest).await);
        assert!(!is_sent_away(&busy).await && !is_sent_away(&last).await);
        drop(answering);
        let _fifth = crowd.join();
        assert!(is_sent_away(&last).await);
    }

    #[tokio::test]
    async fn a_place_that_is_given_back_is_free() {
        let crowd = Crowd::new(1);
        drop(crowd.join());
        let second = crowd.join();
        assert!(!is_sent_away(&second).await);
    }
}
