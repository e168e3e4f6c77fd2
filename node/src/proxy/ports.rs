//! The ports of a proxy's own endpoints. During upgrades several proxies share a network namespace, so each has other ports
//! than the two before it. Rules redirect the standard ports, which the kubelet, Prometheus and `istio-iptables` use, to the
//! serving proxy.

use contract::names::{DEFAULT_STATUS_PORT, ENVOY_ADMIN_PORT};

/// Holds the ports of one proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    /// Envoy's admin interface, for localhost.
    pub(super) admin: u16,
    /// Probes and merged metrics, by pilot-agent.
    pub(super) status: u16,
    /// Readiness.
    pub(super) readiness: u16,
    /// Envoy's metrics.
    pub(super) metrics: u16,
    /// DNS, by pilot-agent where it is captured.
    pub(super) dns: u16,
    /// The conntrack zone of the DNS clients' connections: a client that keeps its UDP socket is redirected again in another zone.
    pub(super) dns_zone: u16,
}

/// Istio's standard ports.
pub(super) const STANDARD: Ports = Ports {
    admin: ENVOY_ADMIN_PORT,
    status: DEFAULT_STATUS_PORT,
    readiness: 15021,
    metrics: 15090,
    dns: 15053,
    dns_zone: 2,
};
/// The number of successive proxies that share no port.
const SETS: u32 = 3;

impl Ports {
    /// Returns the ports of a revision.
    pub(super) fn of(revision: u32) -> Self {
        let set = match revision % SETS {
            0 => 0,
            1 => 1,
            _ => 2,
        };
        let offset = 100 * set;
        let Self { admin, status, readiness, metrics, dns, dns_zone } = STANDARD;
        Self {
            admin: admin + offset,
            status: status + offset,
            readiness: readiness + offset,
            metrics: metrics + offset,
            dns: dns + offset,
            dns_zone: dns_zone + set,
        }
    }

    /// Returns the ports of all revisions.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..SETS).map(Self::of)
    }

    /// Returns true for the port at which pilot-agent serves, with any revision.
    pub(super) fn has_pilot_agent(port: u16) -> bool {
        Self::all().any(|ports| ports.status == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_successive_proxies_share_no_port() {
        for revision in 0..4 {
            let ports = [0, 1, 2].map(|next| Ports::of(revision + next));
            let mut all = ports.map(|it| [it.admin, it.status, it.readiness, it.metrics, it.dns, it.dns_zone]).concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 18, "{ports:?}");
        }
    }
}
