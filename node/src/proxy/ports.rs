//! The ports of a proxy's own endpoints. During upgrades several proxies share a network namespace, so each has other ports
//! than the two before it. Rules redirect the standard ports, which the kubelet and Prometheus use, to the serving proxy.

use std::fmt::Write;

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
}

/// Istio's standard ports.
pub(super) const STANDARD: Ports =
    Ports { admin: ENVOY_ADMIN_PORT, status: DEFAULT_STATUS_PORT, readiness: 15021, metrics: 15090 };
/// The number of successive proxies that share no port.
const SETS: u32 = 3;
/// `istio-iptables` takes every chain whose name begins with `ISTIO_` for its own.
const CHAIN: &str = "AUX_PROXY_PORTS";

impl Ports {
    /// Returns the ports of a revision.
    pub(super) fn of(revision: u32) -> Self {
        let offset = match revision % SETS {
            0 => 0,
            1 => 100,
            _ => 200,
        };
        let Self { admin, status, readiness, metrics } = STANDARD;
        Self {
            admin: admin + offset,
            status: status + offset,
            readiness: readiness + offset,
            metrics: metrics + offset,
        }
    }

    /// Returns true for the port at which pilot-agent serves, with any revision.
    pub(super) fn has_pilot_agent(port: u16) -> bool {
        (0..SETS).any(|revision| Self::of(revision).status == port)
    }

    /// Returns the rules for `iptables-restore --noflush` that redirect the standard ports to the proxy of a revision and user, and the
    /// jumps to these rules unless they exist.
    pub(super) fn rules(revision: u32, user: u32, is_ipv6: bool, has_jumps: bool) -> String {
        let ports = Self::of(revision);
        let mut rules = format!("*nat\n:{CHAIN} - [0:0]\n");
        if ports != STANDARD {
            let pairs = [
                (STANDARD.status, ports.status),
                (STANDARD.readiness, ports.readiness),
                (STANDARD.metrics, ports.metrics),
            ];
            for (from, to) in pairs {
                // Writing to a String cannot fail.
                let _ = writeln!(rules, "-A {CHAIN} -p tcp --dport {from} -j REDIRECT --to-ports {to}");
            }
        }
        if !has_jumps {
            let localhost = if is_ipv6 { "::1" } else { "127.0.0.1" };
            let _ = writeln!(rules, "-I PREROUTING -j {CHAIN}");
            // A proxy that does not serve yet probes its own readiness port; the agent probes it by another address (`netns.rs`).
            let not_proxies = format!("-m owner ! --uid-owner {user}");
            let _ = writeln!(rules, "-I OUTPUT -d {localhost} -o lo {not_proxies} -j {CHAIN}");
        }
        rules + "COMMIT\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_successive_proxies_share_no_port() {
        for revision in 0..4 {
            let ports = [0, 1, 2].map(|next| Ports::of(revision + next));
            let mut all = ports.map(|it| [it.admin, it.status, it.readiness, it.metrics]).concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 12, "{ports:?}");
        }
    }

    #[test]
    fn standard_ports_are_redirected_to_serving_proxy() {
        let rules =
            [(1, false), (2, true), (3, true)].map(|(revision, has)| Ports::rules(revision, 1_879_048_192, false, has));
        insta::assert_snapshot!(rules.join("---\n"));
    }

    #[test]
    fn ipv6_rules_have_ipv6_localhost() {
        assert!(Ports::rules(1, 1_879_048_192, true, false).contains("-I OUTPUT -d ::1 -o lo"));
    }
}
