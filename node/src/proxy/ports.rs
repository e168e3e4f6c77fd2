//! The ports on which a proxy listens for itself. While proxies are upgraded there are several in one network namespace, so each
//! has others than the two before it. Who asks for the ordinary ones, as the kubelet and Prometheus do, is led to these.

use std::fmt::Write;

use super::istio::{ADMIN_PORT, METRICS_PORT, PROXY_USER, READINESS_PORT, STATUS_PORT};

/// The ports of one proxy.
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
}

/// Istio's own.
const ORDINARY: Ports =
    Ports { admin: ADMIN_PORT, status: STATUS_PORT, readiness: READINESS_PORT, metrics: METRICS_PORT };
/// How many proxies that follow each other have ports of their own.
const SETS: u32 = 3;
/// `istio-iptables` takes every chain whose name begins with `ISTIO_` for its own.
const CHAIN: &str = "AUX_PROXY_PORTS";

impl Ports {
    /// Those of the first proxy, or of one after so many upgrades.
    pub(super) fn of(generation: u32) -> Self {
        let offset = match generation % SETS {
            0 => 0,
            1 => 100,
            _ => 200,
        };
        let Self { admin, status, readiness, metrics } = ORDINARY;
        Self {
            admin: admin + offset,
            status: status + offset,
            readiness: readiness + offset,
            metrics: metrics + offset,
        }
    }

    /// The rules for `iptables-restore --noflush`, or for IPv6's, that lead the ordinary ports to the proxy of a generation;
    /// with the jumps to them, unless these are there.
    pub(super) fn rules(generation: u32, is_ipv6: bool, has_jumps: bool) -> String {
        let ports = Self::of(generation);
        let mut rules = format!("*nat\n:{CHAIN} - [0:0]\n");
        if ports != ORDINARY {
            let pairs = [
                (ORDINARY.status, ports.status),
                (ORDINARY.readiness, ports.readiness),
                (ORDINARY.metrics, ports.metrics),
            ];
            for (from, to) in pairs {
                // Writing to a String cannot fail.
                let _ = writeln!(rules, "-A {CHAIN} -p tcp --dport {from} -j REDIRECT --to-ports {to}");
            }
        }
        if !has_jumps {
            let localhost = if is_ipv6 { "::1" } else { "127.0.0.1" };
            let _ = writeln!(rules, "-I PREROUTING -j {CHAIN}");
            // A proxy that does not serve yet asks itself whether it is ready, and the agent asks it by another address.
            let not_proxies = format!("-m owner ! --uid-owner {PROXY_USER}");
            let _ = writeln!(rules, "-I OUTPUT -d {localhost} -o lo {not_proxies} -j {CHAIN}");
        }
        rules + "COMMIT\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_proxies_that_follow_each_other_share_no_port() {
        for generation in 0..4 {
            let ports = [0, 1, 2].map(|next| Ports::of(generation + next));
            let mut all = ports.map(|it| [it.admin, it.status, it.readiness, it.metrics]).concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 12, "{ports:?}");
        }
    }

    #[test]
    fn the_ordinary_ports_lead_to_the_proxy_that_serves() {
        let rules = [(1, false), (2, true), (3, true)].map(|(generation, has)| Ports::rules(generation, false, has));
        insta::assert_snapshot!(rules.join("---\n"));
    }

    #[test]
    fn localhost_has_its_address_of_each_family() {
        assert!(Ports::rules(1, true, false).contains("-I OUTPUT -d ::1 -o lo"));
    }
}
