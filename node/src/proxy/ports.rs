//! The ports on which a proxy listens for itself. While it is upgraded there are two in one network namespace, so every second
//! one has others. Who asks for the ordinary ones, as the kubelet and Prometheus do, is led to these.

use std::fmt::Write;

use contract::names::DEFAULT_STATUS_PORT;

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
const ORDINARY: Ports = Ports { admin: 15000, status: DEFAULT_STATUS_PORT, readiness: 15021, metrics: 15090 };
const OTHER: Ports = Ports { admin: 15100, status: 15120, readiness: 15121, metrics: 15190 };

impl Ports {
    /// Those of the first proxy, or of one after so many upgrades.
    pub(super) fn of(generation: u32) -> Self {
        if generation.is_multiple_of(2) { ORDINARY } else { OTHER }
    }

    /// The rules for `iptables-restore --noflush`, or for IPv6's, that lead the ordinary ports to the proxy of a generation.
    pub(super) fn rules(generation: u32, is_ipv6: bool) -> String {
        let ports = Self::of(generation);
        let mut rules = "*nat\n:ISTIO_AUX_PORTS - [0:0]\n".to_owned();
        if ports != ORDINARY {
            let pairs = [
                (ORDINARY.status, ports.status),
                (ORDINARY.readiness, ports.readiness),
                (ORDINARY.metrics, ports.metrics),
            ];
            for (from, to) in pairs {
                // Writing to a String cannot fail.
                let _ = writeln!(rules, "-A ISTIO_AUX_PORTS -p tcp --dport {from} -j REDIRECT --to-ports {to}");
            }
        }
        // The chain stays, and so do the jumps to it.
        if generation == 1 {
            let localhost = if is_ipv6 { "::1" } else { "127.0.0.1" };
            rules += "-I PREROUTING -j ISTIO_AUX_PORTS\n";
            // The agent asks a proxy that does not serve yet by another address.
            let _ = writeln!(rules, "-I OUTPUT -d {localhost} -o lo -j ISTIO_AUX_PORTS");
        }
        rules + "COMMIT\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_proxies_that_follow_each_other_share_no_port() {
        for generation in 0..4 {
            let ports = [Ports::of(generation), Ports::of(generation + 1)];
            let [one, next] = ports.map(|it| [it.admin, it.status, it.readiness, it.metrics]);
            assert!(one.iter().all(|port| !next.contains(port)), "{one:?} {next:?}");
        }
    }

    #[test]
    fn localhost_has_its_address_of_each_family() {
        assert!(Ports::rules(1, true).contains("-I OUTPUT -d ::1 -o lo"));
    }

    #[test]
    fn the_ordinary_ports_lead_to_the_proxy_that_serves() {
        insta::assert_snapshot!([1, 2, 3].map(|generation| Ports::rules(generation, false)).join("---\n"));
    }
}
