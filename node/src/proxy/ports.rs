//! The ports of a proxy's own endpoints. During upgrades several proxies share a network namespace, so each has other ports
//! than the two before it. Rules redirect the standard ports, which the kubelet, Prometheus and `istio-iptables` use, to the
//! serving proxy.

use std::collections::HashMap;
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
    /// DNS, by pilot-agent where it is captured.
    pub(super) dns: u16,
}

/// Istio's standard ports.
pub(super) const STANDARD: Ports =
    Ports { admin: ENVOY_ADMIN_PORT, status: DEFAULT_STATUS_PORT, readiness: 15021, metrics: 15090, dns: 15053 };
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
        let Self { admin, status, readiness, metrics, dns } = STANDARD;
        Self {
            admin: admin + offset,
            status: status + offset,
            readiness: readiness + offset,
            metrics: metrics + offset,
            dns: dns + offset,
        }
    }

    /// Returns the ports of DNS of all revisions.
    fn all_dns() -> impl Iterator<Item = u16> {
        (0..SETS).map(|revision| Self::of(revision).dns)
    }

    /// Returns true for the port at which pilot-agent serves, with any revision.
    pub(super) fn has_pilot_agent(port: u16) -> bool {
        (0..SETS).any(|revision| Self::of(revision).status == port)
    }

    /// Returns the rules for `iptables-restore --noflush` that redirect the standard ports to the proxy of a revision and user, and the
    /// jumps to these rules unless they exist. `saved` are the rules that there are, by `iptables-save`.
    pub(super) fn rules(revision: u32, user: u32, is_ipv6: bool, saved: &str) -> String {
        let ports = Self::of(revision);
        let mut rules = answers_of_dns(saved);
        // Writing to a String cannot fail.
        let _ = writeln!(rules, "*nat\n:{CHAIN} - [0:0]");
        rules += &queries_of_dns(saved, ports.dns);
        if ports != STANDARD {
            let pairs = [
                (STANDARD.status, ports.status),
                (STANDARD.readiness, ports.readiness),
                (STANDARD.metrics, ports.metrics),
            ];
            for (from, to) in pairs {
                let _ = writeln!(rules, "-A {CHAIN} -p tcp --dport {from} -j REDIRECT --to-ports {to}");
            }
        }
        if !saved.contains(&format!("-A PREROUTING -j {CHAIN}\n")) {
            let localhost = if is_ipv6 { "::1" } else { "127.0.0.1" };
            let _ = writeln!(rules, "-I PREROUTING -j {CHAIN}");
            // A proxy that does not serve yet probes its own readiness port; the agent probes it by another address (`netns.rs`).
            let not_proxies = format!("-m owner ! --uid-owner {user}");
            let _ = writeln!(rules, "-I OUTPUT -d {localhost} -o lo {not_proxies} -j {CHAIN}");
        }
        rules + "COMMIT\n"
    }
}

/// Is a rule of `iptables-save`.
#[derive(Clone, Copy)]
struct Rule<'a> {
    chain: &'a str,
    /// Its number in the chain, from 1 on.
    number: usize,
    /// Its matches and its target.
    text: &'a str,
}

impl Rule<'_> {
    /// Returns the same matches and target with another number after an option, if the option has a DNS port of some revision.
    fn with_dns_port(self, option: &str, port: u16) -> Option<String> {
        let is_so = |found: &u16| {
            self.text.contains(&format!("{option} {found} ")) || self.text.ends_with(&format!("{option} {found}"))
        };
        let found = Ports::all_dns().find(is_so)?;
        Some(self.text.replace(&format!("{option} {found}"), &format!("{option} {port}")))
    }
}

/// Returns the rules of a table.
fn rules_of<'a>(saved: &'a str, table: &str) -> Vec<Rule<'a>> {
    let (mut rules, mut counts) = (Vec::new(), HashMap::new());
    let lines =
        saved.lines().skip_while(|line| line.strip_prefix('*') != Some(table)).take_while(|line| *line != "COMMIT");
    for line in lines {
        if let Some((chain, text)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) {
            let number = counts.entry(chain).or_insert(0);
            *number += 1;
            rules.push(Rule { chain, number: *number, text });
        }
    }
    rules
}

/// Returns the rules that replace those by which `istio-iptables` redirects DNS.
fn queries_of_dns(saved: &str, port: u16) -> String {
    let mut rules = String::new();
    for rule in rules_of(saved, "nat") {
        if let Some(text) = rule.with_dns_port("--to-ports", port) {
            let _ = writeln!(rules, "-R {} {} {text}", rule.chain, rule.number);
        }
    }
    rules
}

/// Returns the rules that count answers of each revision's port among the connections to which `istio-iptables` counts those of the
/// standard port: as long as it drains, a proxy answers. Empty where there are such rules.
fn answers_of_dns(saved: &str) -> String {
    let all = rules_of(saved, "raw");
    let mut rules = String::new();
    for rule in &all {
        for port in Ports::all_dns() {
            if let Some(text) = rule.with_dns_port("--sport", port)
                && !all.iter().any(|other| other.chain == rule.chain && other.text == text)
            {
                let _ = writeln!(rules, "-A {} {text}", rule.chain);
            }
        }
    }
    if rules.is_empty() { rules } else { format!("*raw\n{rules}COMMIT\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_successive_proxies_share_no_port() {
        for revision in 0..4 {
            let ports = [0, 1, 2].map(|next| Ports::of(revision + next));
            let mut all = ports.map(|it| [it.admin, it.status, it.readiness, it.metrics, it.dns]).concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 15, "{ports:?}");
        }
    }

    const JUMP: &str = "*nat\n-A PREROUTING -j AUX_PROXY_PORTS\nCOMMIT\n";

    #[test]
    fn standard_ports_are_redirected_to_serving_proxy() {
        let rules = [(1, ""), (2, JUMP), (3, JUMP)]
            .map(|(revision, saved)| Ports::rules(revision, 1_879_048_192, false, saved));
        insta::assert_snapshot!(rules.join("---\n"));
    }

    #[test]
    fn ipv6_rules_have_ipv6_localhost() {
        assert!(Ports::rules(1, 1_879_048_192, true, "").contains("-I OUTPUT -d ::1 -o lo"));
    }

    /// The rules of a pod whose DNS is captured.
    const CAPTURED: &str = "*raw
:OUTPUT ACCEPT [0:0]
:ISTIO_OUTPUT_DNS - [0:0]
-A OUTPUT -j ISTIO_OUTPUT_DNS
-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -m owner --uid-owner 1879048192 -j CT --zone 1
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15053 -m owner --uid-owner 1879048192 -j CT --zone 2
COMMIT
*nat
-A PREROUTING -j AUX_PROXY_PORTS
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j REDIRECT --to-ports 15053
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053
COMMIT
";

    #[test]
    fn captured_dns_is_redirected_to_serving_proxy() {
        let next = Ports::rules(1, 1_879_048_192, false, CAPTURED);
        let answers: String = CAPTURED.split_inclusive('\n').filter(|line| line.contains("--sport")).collect();
        let third = CAPTURED
            .replace(
                &answers,
                &(answers.clone() + &answers.replace("15053", "15153") + &answers.replace("15053", "15253")),
            )
            .replace("--to-ports 15053", "--to-ports 15153");
        insta::assert_snapshot!([next, Ports::rules(2, 1_879_048_192, false, &third)].join("---\n"));
    }
}
