//! Asks the pod's other endpoints and then the proxy to quit, again and again until the proxy has ended.

mod request;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use contract::args::WatchArgs;
use contract::endpoint::Endpoint;
use contract::names::{ENVOY_ADMIN_PORT, QUIT_PATH};
use nix::poll::PollFd;

use crate::log;
use request::{QuitRequest, QuitResponse};

/// Pause before the first retry of an endpoint that has not accepted; doubled each time.
const RETRY_BACKOFF_MIN: Duration = Duration::from_secs(1);
const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Pause before a proxy that has accepted is asked again, because it may drain. If the shim is the proxy's parent, it
/// sends SIGTERM after that.
const DRAIN_TIMEOUT: Duration = Duration::from_mins(1);

/// Holds the requests that end a pod's proxy. Times are since the machine's boot.
#[derive(Debug)]
pub(crate) struct ProxyShutdown {
    /// The pod's other endpoints, and the proxy as the last. Endpoints are not asked again once they have accepted.
    targets: Vec<Target>,
    /// Time of the first request to the proxy.
    requested: Option<Duration>,
    /// Time at which the proxy gets SIGTERM.
    terminate_at: Option<Duration>,
    in_flight: Option<InFlight>,
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
    pub(crate) fn new(args: &WatchArgs) -> Self {
        let agent = (args.status_port != 0).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, args.status_port)));
        // With Envoy, pilot-agent ends too. Istio has its admin port on ::1 in a pod that has only IPv6.
        let envoy = [(Ipv6Addr::LOCALHOST, ENVOY_ADMIN_PORT).into(), (Ipv4Addr::LOCALHOST, ENVOY_ADMIN_PORT).into()];
        let proxy = Target::new(agent.into_iter().chain(envoy).map(quit_at).collect());
        let endpoints = args.quit.iter().map(|endpoint| Target::new(vec![endpoint.clone()]));
        Self { targets: endpoints.chain([proxy]).collect(), requested: None, terminate_at: None, in_flight: None }
    }

    /// Returns true if the proxy was asked and has not ended since.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested.is_some()
    }

    /// Continues the request that is on its way, and starts those that are due: of the proxy only while it runs.
    pub(crate) fn advance(&mut self, proxy_runs: bool, now: Duration) {
        loop {
            if let Some(in_flight) = &mut self.in_flight {
                let Some(response) = in_flight.request.advance(now) else { return };
                let (target, endpoint) = (in_flight.target, in_flight.endpoint);
                self.in_flight = None;
                self.note(target, endpoint, &response, now);
            } else {
                // The longest due target first, so that each is asked before the proxy and none delays the others.
                let due = self.open_targets(proxy_runs).filter(|(_, target)| now >= target.next);
                let Some((target, _)) = due.min_by_key(|(_, target)| target.next) else { return };
                self.start(target, 0, now);
            }
        }
    }

    /// Returns the descriptor for a poll that wakes when the request on its way can continue.
    pub(crate) fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.in_flight.as_ref().map(|in_flight| in_flight.request.poll_fd())
    }

    /// Returns the time at which [`advance`](Self::advance) has something to do.
    pub(crate) fn deadline(&self, proxy_runs: bool) -> Option<Duration> {
        if let Some(in_flight) = &self.in_flight {
            return Some(in_flight.request.deadline);
        }
        self.open_targets(proxy_runs).map(|(_, target)| target.next).chain(self.terminate_at).min()
    }

    /// Returns true if the proxy gets SIGTERM now: its ports are closed, or it was asked and has not ended in time.
    pub(crate) fn takes_sigterm(&mut self, now: Duration) -> bool {
        let is_due = self.terminate_at.is_some_and(|at| now >= at);
        if is_due {
            self.terminate_at = Some(now + DRAIN_TIMEOUT);
        }
        is_due
    }

    /// Records that the proxy has ended, so that a restarted one is asked again. Returns the time since the first request.
    pub(crate) fn proxy_ended(&mut self, now: Duration) -> Option<Duration> {
        let proxy = self.proxy();
        if let Some(asked) = self.in_flight.take_if(|in_flight| in_flight.target == proxy) {
            // The proxy can end before its answer is read.
            self.note(proxy, asked.endpoint, &Ok(QuitResponse::ConnectionClosed), now);
        }
        self.terminate_at = None;
        self.targets[proxy].next = Duration::ZERO;
        self.requested.take().map(|requested| now.saturating_sub(requested))
    }

    fn proxy(&self) -> usize {
        self.targets.len() - 1
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
            self.terminate_at.get_or_insert(now + DRAIN_TIMEOUT);
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
            Ok(answer) if may_end && is_proxy => {
                log::info("awaited containers finished, asked istio-proxy to quit", &[("answer", answer)]);
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
        if is_proxy && response.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            self.terminate_at = Some(now);
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
