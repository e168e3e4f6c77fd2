//! Limits a listener's connections, and the memory that their requests hold. At a limit a connection is evicted, so that
//! clients cannot block others by occupying connections or memory.
//!
//! - A new connection evicts one that has never completed a request, else the one that completed its last request longest ago.
//! - A request that needs more memory than is left evicts the connection whose unfinished request is the oldest. Small
//!   requests are not counted: they neither wait for memory nor are evicted for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;

/// Limits the uncounted memory of each connection's request, in bytes. Most reviews fit.
pub(super) const UNCOUNTED_MEMORY_LIMIT: usize = 32 << 10;

/// Holds the connections of a listener, and their limits.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max_connections: usize,
    memory_limit: usize,
    table: Mutex<ConnectionTable>,
    /// Notified whenever memory is given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    evictions: Counter,
    next_id: u64,
    by_id: BTreeMap<u64, ConnectionEntry>,
}

#[derive(Debug)]
struct ConnectionEntry {
    /// Time at which the current request began, the last one ended, or the connection was accepted.
    since: Instant,
    has_completed_a_request: bool,
    /// Counted memory of the current request, in bytes.
    memory: usize,
    is_evicted: bool,
    eviction: Arc<Notify>,
}

/// Holds an accepted connection's place. Dropping it removes the connection from the limiter.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    eviction: Arc<Notify>,
}

/// Holds the memory of a request, from its head until its response is sent. Dropping it gives the memory back.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<ConnectionPermit>);

impl ConnectionLimiter {
    /// Returns a limiter. `memory_limit` is in bytes, and must be more than one request needs.
    pub(super) fn new(max_connections: usize, memory_limit: usize, evictions: Counter) -> Arc<Self> {
        let table = Mutex::new(ConnectionTable { evictions, ..ConnectionTable::default() });
        Arc::new(Self { max_connections, memory_limit, table, freed: Notify::new() })
    }

    /// Adds a new connection, and evicts another one if there are too many.
    pub(super) fn acquire(self: &Arc<Self>) -> Arc<ConnectionPermit> {
        let mut table = self.table();
        if table.open().count() >= self.max_connections {
            table.evict_first_by(|entry| Some((entry.has_completed_a_request, entry.since)));
        }
        let id = table.next_id;
        table.next_id += 1;
        let eviction = Arc::new(Notify::new());
        let entry = ConnectionEntry {
            since: Instant::now(),
            has_completed_a_request: false,
            memory: 0,
            is_evicted: false,
            eviction: eviction.clone(),
        };
        table.by_id.insert(id, entry);
        Arc::new(ConnectionPermit { limiter: self.clone(), id, eviction })
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// Returns the connections that are not evicted.
    fn open(&self) -> impl Iterator<Item = (&u64, &ConnectionEntry)> {
        self.by_id.iter().filter(|(_, entry)| !entry.is_evicted)
    }

    /// Evicts the connection with the least key. Returns whether any had a key.
    fn evict_first_by<K: Ord>(&mut self, key: impl Fn(&ConnectionEntry) -> Option<K>) -> bool {
        let keys = self.open().filter_map(|(id, entry)| Some((key(entry)?, *id)));
        let Some((_, id)) = keys.min() else { return false };
        if let Some(entry) = self.by_id.get_mut(&id) {
            entry.is_evicted = true;
            entry.eviction.notify_one();
        }
        self.evictions.inc();
        true
    }

    /// Evicts connections until the memory of the others and of this one fits into the limit.
    fn evict_for_memory(&mut self, id: u64, memory: usize, limit: usize) {
        let of_others =
            |table: &Self| table.open().filter(|(other, _)| **other != id).map(|(_, entry)| entry.memory).sum();
        loop {
            let others: usize = of_others(self);
            if others + memory <= limit || !self.evict_first_by(|entry| (entry.memory > 0).then_some(entry.since)) {
                return;
            }
        }
    }

    /// Counts a connection's memory if it fits beside that of all others, including evicted ones that are not closed yet.
    fn try_reserve(&mut self, id: u64, memory: usize, limit: usize) -> bool {
        let others = self.by_id.iter().filter(|(other, _)| **other != id).map(|(_, entry)| entry.memory);
        let fits = memory == 0 || others.sum::<usize>() + memory <= limit;
        if fits && let Some(entry) = self.by_id.get_mut(&id) {
            entry.memory = memory;
        }
        fits
    }
}

impl ConnectionPermit {
    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    /// Records that the head of a request has arrived.
    pub(super) fn start_request(self: &Arc<Self>) -> RequestGuard {
        self.update(|entry| entry.since = Instant::now());
        RequestGuard(self.clone())
    }

    fn update(&self, change: impl FnOnce(&mut ConnectionEntry)) {
        if let Some(entry) = self.limiter.table().by_id.get_mut(&self.id) {
            change(entry);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.table().by_id.remove(&self.id);
        self.limiter.freed.notify_waiters();
    }
}

impl RequestGuard {
    /// Reserves memory, in bytes, in place of what the request has reserved so far. If there is not enough, it evicts
    /// connections, which may include this one, and waits until they have given theirs back.
    pub(super) async fn reserve(&self, bytes: usize) {
        let ConnectionPermit { limiter, id, .. } = &*self.0;
        let memory = bytes.saturating_sub(UNCOUNTED_MEMORY_LIMIT);
        loop {
            let freed = limiter.freed.notified();
            {
                let mut table = limiter.table();
                if table.try_reserve(*id, memory, limiter.memory_limit) {
                    return;
                }
                table.evict_for_memory(*id, memory, limiter.memory_limit);
            }
            freed.await;
        }
    }

    /// Counts memory, in bytes, that the request already holds, in place of what it has reserved so far.
    pub(super) fn record_memory(&self, bytes: usize) {
        let ConnectionPermit { limiter, id, .. } = &*self.0;
        let memory = bytes.saturating_sub(UNCOUNTED_MEMORY_LIMIT);
        self.0.update(|entry| entry.memory = memory);
        limiter.table().evict_for_memory(*id, memory, limiter.memory_limit);
        limiter.freed.notify_waiters();
    }

    /// Records that the whole request has arrived.
    pub(super) fn mark_complete(&self) {
        self.0.update(|entry| entry.has_completed_a_request = true);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.update(|entry| {
            entry.memory = 0;
            entry.since = Instant::now();
        });
        self.0.limiter.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const KIB: usize = 1 << 10;
    /// Memory that a request reserves of which 100 KiB are counted.
    const LARGE: usize = UNCOUNTED_MEMORY_LIMIT + 100 * KIB;

    fn is_evicted(permit: &ConnectionPermit) -> bool {
        permit.evicted().now_or_never().is_some()
    }

    fn complete_a_request(permit: &Arc<ConnectionPermit>) {
        permit.start_request().mark_complete();
    }

    #[test]
    fn connection_without_a_request_is_evicted_first() {
        let evictions = Counter::default();
        let limiter = ConnectionLimiter::new(4, 0, evictions.clone());
        let [served, silent, trickling, busy] = std::array::from_fn(|_| limiter.acquire());
        complete_a_request(&served);
        complete_a_request(&busy);
        let _unfinished = trickling.start_request();
        let fifth = limiter.acquire();
        assert!(is_evicted(&silent));
        complete_a_request(&fifth);
        let sixth = limiter.acquire();
        assert!(is_evicted(&trickling));
        complete_a_request(&sixth);
        let _seventh = limiter.acquire();
        assert!(is_evicted(&served), "it completed its last request longest ago");
        assert!(!is_evicted(&busy) && !is_evicted(&fifth));
        assert_eq!(evictions.get(), 3);
    }

    #[test]
    fn closed_connection_makes_room_for_a_new_one() {
        let limiter = ConnectionLimiter::new(1, 0, Counter::default());
        drop(limiter.acquire());
        let second = limiter.acquire();
        assert!(!is_evicted(&second));
    }

    #[test]
    fn oldest_large_request_is_evicted_for_memory() {
        let limiter = ConnectionLimiter::new(10, 250 * KIB, Counter::default());
        let [small, oldest, newer, newest] = std::array::from_fn(|_| limiter.acquire());
        let requests = [&small, &oldest, &newer, &newest].map(ConnectionPermit::start_request);
        assert_eq!(requests[0].reserve(UNCOUNTED_MEMORY_LIMIT).now_or_never(), Some(()));
        assert_eq!(requests[1].reserve(LARGE).now_or_never(), Some(()));
        assert_eq!(requests[2].reserve(LARGE).now_or_never(), Some(()));
        assert!(!is_evicted(&oldest));
        let mut waiting = std::pin::pin!(requests[3].reserve(LARGE));
        assert_eq!(waiting.as_mut().now_or_never(), None, "the memory is still held");
        assert!(is_evicted(&oldest));
        assert!(!is_evicted(&small) && !is_evicted(&newer) && !is_evicted(&newest));
        let [_small, of_the_oldest, ..] = &requests;
        of_the_oldest.record_memory(0);
        assert_eq!(waiting.now_or_never(), Some(()));
    }

    #[test]
    fn request_that_ends_gives_its_memory_back() {
        let limiter = ConnectionLimiter::new(10, 100 * KIB, Counter::default());
        let [first, second] = std::array::from_fn(|_| limiter.acquire());
        let request = first.start_request();
        assert_eq!(request.reserve(LARGE).now_or_never(), Some(()));
        drop(request);
        assert_eq!(second.start_request().reserve(LARGE).now_or_never(), Some(()));
        assert!(!is_evicted(&first));
    }

    #[test]
    fn unsent_response_delays_only_large_requests() {
        for (bytes, fits) in [(LARGE, false), (UNCOUNTED_MEMORY_LIMIT, true)] {
            let limiter = ConnectionLimiter::new(10, 100 * KIB, Counter::default());
            let [slow_reader, other] = std::array::from_fn(|_| limiter.acquire());
            let response = slow_reader.start_request();
            response.record_memory(LARGE);
            let request = other.start_request();
            assert_eq!(request.reserve(bytes).now_or_never().is_some(), fits, "{bytes}");
            assert_eq!(is_evicted(&slow_reader), !fits, "{bytes}");
            assert!(!is_evicted(&other), "{bytes}");
        }
    }
}
