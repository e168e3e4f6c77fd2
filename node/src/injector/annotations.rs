//! What a pod may say of its proxy, by annotations.

use std::collections::BTreeMap;

use contract::names::{
    MERGE_METRICS_ANNOTATION, PROBES_ANNOTATION, PROXY_CONFIG_ANNOTATION, SCRAPE_TARGETS_ANNOTATION, SCRAPES_ANNOTATION,
};
use serde_json::{Map, Value};

use super::program::VALUE_LIMIT;

/// Become firewall rules.
const TRAFFIC: [&str; 6] = [
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "traffic.sidecar.istio.io/excludeOutboundIPRanges",
    "traffic.sidecar.istio.io/includeInboundPorts",
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/includeOutboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
];
/// Become arguments of pilot-agent.
const LOG_LEVELS: [&str; 3] =
    ["sidecar.istio.io/logLevel", "sidecar.istio.io/componentLogLevel", "sidecar.istio.io/agentLogLevel"];
/// Are read by pilot-agent, in a file.
const READ_IN_A_FILE: [&str; 6] = [
    "sidecar.istio.io/statsInclusionPrefixes",
    "sidecar.istio.io/statsInclusionSuffixes",
    "sidecar.istio.io/statsInclusionRegexps",
    "sidecar.istio.io/extraStatTags",
    SCRAPE_TARGETS_ANNOTATION,
    MERGE_METRICS_ANNOTATION,
];
/// The keys of `proxy.istio.io/config` that a pod may set. None names a program, a file, a control plane, a CA or an agent's port.
const CONFIG_KEYS: [&str; 6] =
    ["concurrency", "drainDuration", "tracing", "proxyStatsMatcher", "proxyHeaders", "extraStatTags"];
/// Annotations, and the characters that are allowed in their values.
type Kind = (&'static [&'static str], fn(char) -> bool);

/// Limits characters so that no value injects YAML into istiod's template, or rules into the input of iptables.
/// istiod does not validate all of them (`AnnotationValidation` in Istio's `pkg/kube/inject/validate.go`).
const KINDS: [Kind; 3] = [
    (&TRAFFIC, is_of_traffic),
    (&LOG_LEVELS, |c| c.is_ascii_alphanumeric() || "_.:,-".contains(c)),
    (&READ_IN_A_FILE, |c| (' '..='~').contains(&c)),
];

fn is_of_traffic(c: char) -> bool {
    c.is_ascii_hexdigit() || ".:/,* ".contains(c)
}

/// Returns true for an annotation that may change a proxy. Those of the webhook become variables of pilot-agent.
pub(crate) fn is_of_proxy(name: &str) -> bool {
    let of_webhook = [PROXY_CONFIG_ANNOTATION, PROBES_ANNOTATION, SCRAPES_ANNOTATION];
    KINDS.iter().flat_map(|(names, _)| *names).chain(&of_webhook).any(|known| *known == name)
}

/// Returns the annotations that reach istiod and pilot-agent.
pub(crate) fn annotations(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let of_kinds = KINDS.into_iter().flat_map(|(names, is_allowed)| {
        let given = names.iter().filter_map(|name| all.get_key_value(*name));
        given.filter(move |(_, value)| value.chars().all(is_allowed))
    });
    let of_kinds = of_kinds.map(|(name, value)| (name.clone(), value.clone()));
    let config = all.get(PROXY_CONFIG_ANNOTATION).and_then(|text| proxy_config(text)).and_then(|mut config| {
        config.retain(|key, _| CONFIG_KEYS.contains(&key.as_str()));
        let text = Value::from(config).to_string();
        // JSON escapes no line break beyond ASCII, and istiod writes it into YAML.
        text.is_ascii().then(|| (PROXY_CONFIG_ANNOTATION.to_owned(), text))
    });
    of_kinds.chain(config).collect()
}

/// Returns the name of an annotation that should become firewall rules, and is not a list of ports or address ranges.
pub(super) fn wrong_traffic_annotation(all: &BTreeMap<String, String>) -> Option<&'static str> {
    TRAFFIC.into_iter().find(|name| all.get(*name).is_some_and(|value| !value.chars().all(is_of_traffic)))
}

/// Parses the annotation; `None` where it is not a mapping, or is too large with its aliases expanded.
fn proxy_config(text: &str) -> Option<Map<String, Value>> {
    let options = serde_saphyr::options! { budget: serde_saphyr::budget! { max_total_scalar_bytes: VALUE_LIMIT } };
    (text.len() <= VALUE_LIMIT).then(|| serde_saphyr::from_str_with_options(text, options).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_that_could_be_a_line_of_the_template_does_not_reach_istiod() {
        let breaks = ["80\n", "80\r", "80\u{85}", "80\u{2028}", "80\u{2029}", "80\"", r"80\n", "80 -j RETURN", "80{{"];
        let all = [&TRAFFIC[..], &LOG_LEVELS, &READ_IN_A_FILE].concat();
        for (name, value) in all.iter().flat_map(|name| breaks.map(|value| (*name, value))) {
            let is_read_in_a_file = READ_IN_A_FILE.contains(&name);
            let is_one_line = value.chars().all(|c| (' '..='~').contains(&c));
            let given = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            assert_eq!(annotations(&given).is_empty(), !(is_read_in_a_file && is_one_line), "{name}: {value:?}");
            assert_eq!(wrong_traffic_annotation(&given), TRAFFIC.contains(&name).then_some(name), "{value:?}");
        }
        for value in ["*", "80,443", "80, 443", "10.0.0.0/8,fd00::/8", ""] {
            let given = BTreeMap::from([(TRAFFIC[0].to_owned(), value.to_owned())]);
            assert_eq!(annotations(&given), given);
        }
        let config =
            |text: &str| annotations(&BTreeMap::from([(PROXY_CONFIG_ANNOTATION.to_owned(), text.to_owned())])).len();
        assert_eq!(["extraStatTags: [a]", "extraStatTags: [\"a\\u0085b\"]"].map(config), [1, 0]);
    }

    #[test]
    fn aliases_of_an_annotation_do_not_multiply_it() {
        let config = format!("concurrency: &a {}\ntracing: [{}]", "x".repeat(30_000), "*a, ".repeat(90));
        assert_eq!(annotations(&[(PROXY_CONFIG_ANNOTATION.to_owned(), config)].into()), BTreeMap::new());
    }
}
