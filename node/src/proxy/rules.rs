//! The rules of a pod's network, as `iptables-save` writes them and `iptables-restore` reads them.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::ports::{Ports, STANDARD};
use super::spec::RULES_LIMIT;
use crate::error::{Error, Result};

/// `istio-iptables` takes every chain whose name begins with `ISTIO_` for its own.
const CHAIN: &str = "AUX_PROXY_PORTS";
/// Suffixes of the `iptables` variants, each of which sees only its own rules. The plain one is one of the other two.
const KINDS: [&str; 3] = ["-nft", "-legacy", ""];

/// Returns the error for rules that are not read to their end.
pub(super) fn too_large() -> Error {
    Error::new(format_args!("the pod's rules are more than {RULES_LIMIT} bytes"))
}

/// Fails if the pod redirects DNS, but its DNS rules were not read: iptables before 1.8.8 omits `--dport` of rules that a later version
/// wrote. An upgrade would then leave DNS redirected to the earlier proxy.
pub(super) fn check_dns(saved: &[SavedRules], redirects_dns: bool) -> Result<()> {
    let are_read = saved.iter().any(|saved| saved.of("nat").into_iter().any(Rule::captures_dns));
    let unread = || {
        Error::new(
            "the image's iptables does not read the pod's DNS rules: it is older than 1.8.8, or they were deleted",
        )
    };
    (are_read || !redirects_dns).then_some(()).ok_or_else(unread)
}

/// Holds the rules for one family of addresses.
pub(super) struct SavedRules {
    /// The program that has them, without `-save`.
    pub(super) program: String,
    /// They are for IPv6.
    pub(super) is_ipv6: bool,
    /// What `iptables-save` has written.
    pub(super) text: String,
}

impl SavedRules {
    /// Reads the rules of each kind of `iptables` until it finds Istio's: `istio-iptables` chose a kind
    /// (`tools/istio-iptables/pkg/dependencies`). Where no kind has Istio's, those of the first, unless one could not be read.
    pub(super) async fn find<F>(is_ipv6: bool, read: impl Fn(String) -> F) -> Result<Self>
    where
        F: Future<Output = Result<String>>,
    {
        let (mut first, mut unreadable) = (None, Vec::new());
        for kind in KINDS {
            let program = format!("{}tables{kind}", if is_ipv6 { "ip6" } else { "ip" });
            match read(program.clone()).await {
                // A program that ignores SIGXFSZ at the limit leaves a truncated file.
                Ok(text) if text.len() >= RULES_LIMIT => unreadable.push(format!("{program}-save: {}", too_large())),
                Ok(text) => {
                    let saved = Self { program, is_ipv6, text };
                    if saved.have_istios() {
                        return Ok(saved);
                    }
                    first.get_or_insert(saved);
                }
                Err(error) => unreadable.push(format!("{program}-save: {error}")),
            }
        }
        first.filter(|_| unreadable.is_empty()).ok_or_else(|| Error::new(unreadable.join("; ")))
    }

    /// Returns true if those of `istio-iptables` are among them.
    fn have_istios(&self) -> bool {
        self.text.lines().any(|line| line.starts_with(":ISTIO_"))
    }

    /// Returns the rules for `iptables-restore --noflush` that redirect the standard ports, and captured DNS, to the proxy of a
    /// revision and user, and the jumps to these rules unless they exist.
    pub(super) fn to_proxy(&self, revision: u32, user: u32) -> String {
        let ports = Ports::of(revision);
        let mut rules = format!("*nat\n:{CHAIN} - [0:0]\n");
        for rule in self.of("nat").into_iter().filter(|rule| rule.captures_dns()) {
            rules += &rule.replaced(&[("--to-ports", ports.dns)]);
        }
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
        if !self.text.contains(&format!("-A PREROUTING -j {CHAIN}\n")) {
            let localhost = if self.is_ipv6 { "::1" } else { "127.0.0.1" };
            let _ = writeln!(rules, "-I PREROUTING -j {CHAIN}");
            // A proxy that does not serve yet probes its own readiness port; the agent probes it by another address (`netns.rs`).
            let not_proxies = format!("-m owner ! --uid-owner {user}");
            let _ = writeln!(rules, "-I OUTPUT -d {localhost} -o lo {not_proxies} -j {CHAIN}");
        }
        // conntrack keeps redirecting a known connection. In a new zone the rules above decide, so they are applied first. A query
        // in between is lost, and its client repeats it.
        rules + "COMMIT\n" + &self.dns_zones(ports)
    }

    /// Returns the rules that put DNS queries into the serving proxy's conntrack zone, and each proxy's answers into its own, because
    /// a draining proxy still answers. Empty if DNS is not captured.
    fn dns_zones(&self, serving: Ports) -> String {
        let all = self.of("raw");
        let mut known: HashSet<_> = all.iter().map(|rule| (rule.chain, rule.text.to_owned())).collect();
        let mut rules = String::new();
        for rule in &all {
            if rule.has("--dport", 53) && Ports::all().any(|ports| rule.has("--zone", ports.dns_zone)) {
                rules += &rule.replaced(&[("--zone", serving.dns_zone)]);
            }
            if rule.has("--sport", STANDARD.dns) && rule.has("--zone", STANDARD.dns_zone) {
                for ports in Ports::all() {
                    let text = rule.with(&[("--sport", ports.dns), ("--zone", ports.dns_zone)]);
                    if known.insert((rule.chain, text.clone())) {
                        let _ = writeln!(rules, "-A {} {text}", rule.chain);
                    }
                }
            }
        }
        if rules.is_empty() { rules } else { format!("*raw\n{rules}COMMIT\n") }
    }

    /// Returns the rules of a table.
    fn of(&self, table: &str) -> Vec<Rule<'_>> {
        let (mut rules, mut counts) = (Vec::new(), HashMap::new());
        let lines = self.text.lines().skip_while(|line| line.strip_prefix('*') != Some(table));
        for line in lines.take_while(|line| *line != "COMMIT") {
            if let Some((chain, text)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) {
                let number = counts.entry(chain).or_insert(0);
                *number += 1;
                rules.push(Rule { chain, number: *number, text });
            }
        }
        rules
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
    fn captures_dns(self) -> bool {
        self.has("--dport", 53) && Ports::all().any(|ports| self.has("--to-ports", ports.dns))
    }

    /// Returns true if an option has the number.
    fn has(self, option: &str, number: u16) -> bool {
        let mut words = self.text.split(' ').skip_while(|word| *word != option);
        words.nth(1) == Some(&number.to_string())
    }

    /// Returns the same matches and target with other numbers after options.
    fn with(self, numbers: &[(&str, u16)]) -> String {
        let mut words: Vec<_> = self.text.split(' ').map(str::to_owned).collect();
        for (option, number) in numbers {
            let number_of = words.iter().position(|word| word == option).and_then(|at| words.get_mut(at + 1));
            if let Some(word) = number_of {
                *word = number.to_string();
            }
        }
        words.join(" ")
    }

    /// Returns the line that puts the same rule with other numbers in its place.
    fn replaced(self, numbers: &[(&str, u16)]) -> String {
        format!("-R {} {} {}\n", self.chain, self.number, self.with(numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1_879_048_192;
    /// The rules of a pod whose DNS is captured.
    const CAPTURED: &str = "*raw
:OUTPUT ACCEPT [0:0]
:ISTIO_OUTPUT_DNS - [0:0]
-A OUTPUT -j ISTIO_OUTPUT_DNS
-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -m owner --uid-owner 1879048192 -j CT --zone 1
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15053 -m owner --uid-owner 1879048192 -j CT --zone 2
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j CT --zone 2
COMMIT
*nat
-A PREROUTING -j AUX_PROXY_PORTS
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A OUTPUT -p tcp -m tcp --dport 8053 -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j REDIRECT --to-ports 15053
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053
COMMIT
";
    /// The same after an upgrade.
    const UPGRADED: &str = "*raw
-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -m owner --uid-owner 1879048192 -j CT --zone 1
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15053 -m owner --uid-owner 1879048192 -j CT --zone 2
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j CT --zone 3
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15153 -m owner --uid-owner 1879048192 -j CT --zone 3
-A ISTIO_OUTPUT_DNS -p udp -m udp --sport 15253 -m owner --uid-owner 1879048192 -j CT --zone 4
COMMIT
*nat
-A PREROUTING -j AUX_PROXY_PORTS
-A ISTIO_OUTPUT_DNS -d 10.96.0.10/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15153
COMMIT
";

    fn saved(text: &str) -> SavedRules {
        SavedRules { program: "iptables-nft".to_owned(), is_ipv6: false, text: text.to_owned() }
    }

    #[test]
    fn standard_ports_are_redirected_to_serving_proxy() {
        let with_jump = "*nat\n-A PREROUTING -j AUX_PROXY_PORTS\nCOMMIT\n";
        let rules =
            [(1, ""), (2, with_jump), (3, with_jump)].map(|(revision, text)| saved(text).to_proxy(revision, USER));
        insta::assert_snapshot!(rules.join("---\n"));
    }

    #[test]
    fn ipv6_rules_have_ipv6_localhost() {
        let saved = SavedRules { is_ipv6: true, ..saved("") };
        assert!(saved.to_proxy(1, USER).contains("-I OUTPUT -d ::1 -o lo"));
    }

    #[test]
    fn captured_dns_is_redirected_to_serving_proxy() {
        let rules = [(1, CAPTURED), (2, UPGRADED)].map(|(revision, text)| saved(text).to_proxy(revision, USER));
        insta::assert_snapshot!(rules.join("---\n"));
    }

    #[test]
    fn rules_of_dns_that_are_not_read_are_an_error() {
        let older = UPGRADED.replace("-m udp --dport 53 -j REDIRECT", "-j REDIRECT");
        for (rules, redirects_dns, is_ok) in [
            (CAPTURED, true, true),
            (UPGRADED, true, true),
            (&older, true, false),
            ("", true, false),
            ("", false, true),
        ] {
            assert_eq!(check_dns(&[saved(rules)], redirects_dns).is_ok(), is_ok, "{rules}");
        }
    }

    #[tokio::test]
    async fn rules_are_of_the_kind_that_has_istios() {
        let other = "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -j LOG --log-prefix ISTIO_\nCOMMIT\n";
        let cut = CAPTURED.repeat(RULES_LIMIT / CAPTURED.len() + 1);
        let (istios, other) = (Ok(CAPTURED), Ok(other));
        let failed = Err("it ended with 137");
        for (nft, legacy, expected) in [
            (istios, failed, Ok("iptables-nft")),
            (other, istios, Ok("iptables-legacy")),
            (failed, istios, Ok("iptables-legacy")),
            // As with a family of addresses that istio-iptables does not redirect.
            (other, Ok(""), Ok("iptables-nft")),
            (other, failed, Err("iptables-legacy-save: it ended with 137")),
            (failed, Ok(""), Err("iptables-nft-save: it ended with 137; iptables-save: it ended with 137")),
            (Ok(""), Ok(&cut), Err("iptables-legacy-save: the pod's rules are more than 1048576 bytes")),
        ] {
            let read = |program| async move {
                let text = if program == "iptables-legacy" { legacy } else { nft };
                text.map(str::to_owned).map_err(Error::new)
            };
            let found = SavedRules::find(false, read).await;
            let found = found.map(|saved| saved.program).map_err(|error| error.to_string());
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned));
        }
    }
}
