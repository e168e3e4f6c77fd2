//! Asks the pod's other endpoints and then the proxy to quit, again and again until the proxy has ended.

mod queues;
mod request;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use contract::args::WatchArgs;
use contract::endpoint::Endpoint;
use contract::names::{ENVOY_ADMIN_PORT, QUIT_PATH};
use nix::poll::PollFd;
use nix::sys::signal::Signal;

use crate::log;
use request::{QuitRequest, QuitResponse};

/// Pause before the first retry of an endpoint that has not accepted; doubled each time.
const RETRY_BACKOFF_MIN: Duration = Duration::from_secs(1);
const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Time in which a proxy that has accepted may drain. Then its next endpoint is asked, since an Istio before 1.26 may drain for
/// ever, and Envoy's own port ends it (istio#55424). If the shim is the proxy's parent, it sends SIGTERM, and later SIGKILL.
const DRAIN_TIMEOUT: Duration = Duration::from_mins(1);
/// Longest wait for unsent data before the proxy is asked to quit, and exits at once. Istio's default drain time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks for unsent data.
const FLUSH_PAUSE: Duration = Duration::from_millis(20);

/// Holds the requests that end a pod's proxy. Times are since the machine's boot.
#[derive(Debug)]
pub(crate) struct ProxyShutdown {
    /// The pod's other endpoints, and the proxy as the last. Endpoints are not asked again once they have accepted.
    targets: Vec<Target>,
    /// Time of the first request to the proxy.
    requested: Option<Duration>,
    /// Time at which the proxy gets the next signal, and that signal.
    signal_at: Option<(Duration, Signal)>,
    in_flight: Option<InFlight>,
    /// The kernel's lists of the pod's connections.
    connections: PathBuf,
    /// Time of the first check that found unsent data, and whether the last one did.
    flush: Option<(Duration, bool)>,
    /// Time at which the proxy has accepted.
    accepted: Option<Duration>,
    /// The endpoint of the proxy's that has accepted first.
    pub(crate) accepted_by: Option<Endpoint>,
}

#[derive(Debug)]
struct Target {
    /// Asked in this order until one accepts.
    endpoints: Vec<Endpoint>,
    next: Duration,
    backoff: Duration,
    has_accepted: bool,
}

/// Holds the request that is on its way.
#[derive(Debug)]
struct InFlight {
    request: QuitRequest,
    /// The target's index.
    target: usize,
    /// The index of its endpoint.
    endpoint: usize,
}

impl ProxyShutdown {
    /// Returns the requests for a pod.
    pub(crate) fn new(args: &WatchArgs) -> Self {
        let agent = (args.status_port != 0).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, args.status_port)));
        // With Envoy, pilot-agent ends too. Istio has its admin port on ::1 in a pod that has only IPv6.
        let envoy = [(Ipv6Addr::LOCALHOST, ENVOY_ADMIN_PORT).into(), (Ipv4Addr::LOCALHOST, ENVOY_ADMIN_PORT).into()];
        let proxy = Target::new(agent.into_iter().chain(envoy).map(quit_at).collect());
        let endpoints = args.quit.iter().map(|endpoint| Target::new(vec![endpoint.clone()]));
        Self {
            targets: endpoints.chain([proxy]).collect(),
            requested: None,
            signal_at: None,
            in_flight: None,
            connections: PathBuf::from("/proc/self/net"),
            flush: None,
            accepted: None,
            accepted_by: None,
        }
    }

    /// Returns true if the proxy was asked and has not ended since.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.is_some()
    }

    /// Continues the request in flight, and starts those that are due; the proxy's only while it runs.
    pub(crate) fn advance(&mut self, proxy_runs: bool, now: Duration) {
        loop {
            if let Some(in_flight) = &mut self.in_flight {
                let Some(response) = in_flight.request.advance(now) else { return };
                let (target, endpoint) = (in_flight.target, in_flight.endpoint);
                self.in_flight = None;
                self.note(target, endpoint, &response, now);
            } else {
                // The most overdue target first: each is asked before the proxy, and none delays the others.
                let due = self.open_targets(proxy_runs).filter(|(_, target)| now >= target.next);
                let Some((target, _)) = due.min_by_key(|(_, target)| target.next) else { return };
                if target == self.proxy() && self.requested.is_none() && self.is_flushing(now) {
                    self.targets[target].next = now + FLUSH_PAUSE;
                    return;
                }
                let endpoints = self.targets[target].endpoints.len();
                let accepted = self.accepted.filter(|_| target == self.proxy()).unwrap_or(now);
                let drained = now.saturating_sub(accepted);
                let rounds = usize::try_from(drained.as_secs() / DRAIN_TIMEOUT.as_secs()).unwrap_or_default();
                self.start(target, rounds % endpoints, now);
            }
        }
    }

    /// Returns the descriptor for a poll that wakes when the request on its way can continue.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.in_flight.as_ref().map(|in_flight| in_flight.request.poll_fd())
    }

    /// Returns the time at which [`advance`](Self::advance) has something to do, or, for the proxy's parent, a signal is due.
    pub(crate) fn deadline(&self, proxy_runs: bool, is_parent: bool) -> Option<Duration> {
        if let Some(in_flight) = &self.in_flight {
            return Some(in_flight.request.deadline);
        }
        let signal = self.signal_at.filter(|_| is_parent).map(|(at, _)| at);
        self.open_targets(proxy_runs).map(|(_, target)| target.next).chain(signal).min()
    }

    /// Returns the signal that the proxy gets now: its ports are closed, or it was asked and has not ended in time.
    pub(crate) fn due_signal(&mut self, now: Duration) -> Option<Signal> {
        let (_, signal) = self.signal_at.filter(|&(at, _)| now >= at)?;
        self.signal_at = Some((now + DRAIN_TIMEOUT, Signal::SIGKILL));
        Some(signal)
    }

    /// Records that the proxy has ended, so that a restarted one is asked again. Returns the time since the first request.
    pub(crate) fn proxy_ended(&mut self, now: Duration) -> Option<Duration> {
        let proxy = self.proxy();
        if let Some(asked) = self.in_flight.take_if(|in_flight| in_flight.target == proxy) {
            // The proxy can end before its answer is read.
            self.note(proxy, asked.endpoint, &Ok(QuitResponse::ConnectionClosed), now);
        }
        (self.signal_at, self.accepted, self.flush) = (None, None, None);
        (self.targets[proxy].next, self.targets[proxy].backoff) = (Duration::ZERO, RETRY_BACKOFF_MIN);
        self.requested.take().map(|requested| now.saturating_sub(requested))
    }

    fn proxy(&self) -> usize {
        self.targets.len() - 1
    }

    /// Resets the wait for unsent data: an awaited container may run again.
    pub(crate) fn forget_flush(&mut self) {
        self.flush = None;
    }

    /// Returns true while the payload's last data may still be in the proxy. The proxy may hold data in its memory, so after data
    /// was found, two checks in a row have to find none.
    fn is_flushing(&mut self, now: Duration) -> bool {
        let is_found = queues::hold_data(&self.connections);
        let Some((since, was_found)) = self.flush else {
            self.flush = is_found.then_some((now, true));
            return is_found;
        };
        let waited = now.saturating_sub(since);
        self.flush = Some((since, is_found));
        if (is_found || was_found) && waited < FLUSH_TIMEOUT {
            return true;
        }
        let waited = format!("{}ms", waited.as_millis());
        if is_found {
            log::warn("the pod's connections still hold data", &[("waited", &waited)]);
        } else {
            log::info("data has left the pod's connections", &[("waited", &waited)]);
        }
        false
    }

    /// Returns the targets that have not accepted yet; the proxy only while it runs.
    fn open_targets(&self, proxy_runs: bool) -> impl Iterator<Item = (usize, &Target)> {
        let proxy = self.proxy();
        let targets = self.targets.iter().enumerate();
        targets.filter(move |&(index, target)| !target.has_accepted && (proxy_runs || index != proxy))
    }

    fn start(&mut self, target: usize, endpoint: usize, now: Duration) {
        if target == self.proxy() {
            self.requested.get_or_insert(now);
            self.signal_at.get_or_insert((now + DRAIN_TIMEOUT, Signal::SIGTERM));
        }
        match QuitRequest::start(&self.targets[target].endpoints[endpoint], now) {
            Ok(request) => self.in_flight = Some(InFlight { request, target, endpoint }),
            Err(error) => self.note(target, endpoint, &Err(error), now),
        }
    }

    fn note(&mut self, index: usize, asked: usize, response: &io::Result<QuitResponse>, now: Duration) {
        let is_proxy = index == self.proxy();
        let target = &mut self.targets[index];
        let endpoint = &target.endpoints[asked];
        let has_accepted = matches!(response, Ok(QuitResponse::Accepted(_)));
        let may_end = has_accepted || matches!(response, Ok(QuitResponse::ConnectionClosed));
        let falls_back = !may_end && asked + 1 < target.endpoints.len();
        let name = if is_proxy { "istio-proxy" } else { "quit endpoint" };
        match response {
            // Nothing listens there, and the next address is asked.
            Err(error) if falls_back && error.kind() != io::ErrorKind::TimedOut => {}
            // Draining.
            Ok(_) if may_end && is_proxy && self.accepted.is_some() => {}
            Err(_) if is_proxy && self.accepted.is_some() => {}
            Ok(answer) if may_end && is_proxy => {
                log::info("asked istio-proxy to quit", &[("endpoint", endpoint), ("answer", answer)]);
            }
            Ok(answer) if may_end => log::info("asked to quit", &[("endpoint", endpoint), ("answer", answer)]),
            Ok(answer) => {
                log::warn(&format!("{name} rejected the quit request"), &[("endpoint", endpoint), ("answer", answer)]);
            }
            Err(error) => log::warn(&format!("{name} did not answer"), &[("endpoint", endpoint), ("error", error)]),
        }
        if falls_back {
            return self.start(index, asked + 1, now);
        }
        target.next = now + if has_accepted { DRAIN_TIMEOUT } else { target.backoff };
        target.backoff = (target.backoff * 2).min(RETRY_BACKOFF_MAX);
        target.has_accepted = has_accepted && !is_proxy;
        if is_proxy && may_end {
            self.accepted.get_or_insert(now);
            self.accepted_by.get_or_insert_with(|| target.endpoints[asked].clone());
        } else if is_proxy
            && response.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            && let Some((at, Signal::SIGTERM)) = &mut self.signal_at
        {
            *at = now;
        }
    }
}

impl Target {
    fn new(endpoints: Vec<Endpoint>) -> Self {
        Self { endpoints, next: Duration::ZERO, backoff: RETRY_BACKOFF_MIN, has_accepted: false }
    }
}

fn quit_at(address: SocketAddr) -> Endpoint {
    Endpoint { address, path: QUIT_PATH.to_owned() }
}
