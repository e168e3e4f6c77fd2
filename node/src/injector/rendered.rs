//! Reads what istiod's injector gave a pod, from the patched pod.

use cni::protocol::Sandbox;
use contract::names::PROXY_CONTAINER;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use super::TRUST_DOMAIN;
use super::program::{Program, program};
use crate::error::{Context, Error, Result};

/// Has istio-iptables redirect DNS, and pilot-agent answer.
const DNS_CAPTURE: &str = "ISTIO_META_DNS_CAPTURE";
/// With istio-cni, Istio's container checks the rules that the plugin has made, by the same arguments and these.
const ONLY_CHECKS: [&str; 2] = ["--run-validation", "--skip-rule-apply"];

/// Is what the injector gives a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rendered {
    /// pilot-agent as the proxy.
    pub proxy: Program,
    /// pilot-agent as `istio-iptables`, which redirects the pod's traffic.
    pub redirection: Program,
}

impl Rendered {
    /// Returns the mesh's trust domain.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        self.proxy.environment.get(TRUST_DOMAIN).map_or("cluster.local", String::as_str)
    }

    /// Keeps what was fixed with the pod's network: the redirection, and whether pilot-agent answers captured DNS. istiod allocates
    /// addresses for hosts only for pods that capture DNS.
    #[must_use]
    pub fn after(mut self, earlier: Self) -> Self {
        let captures = earlier.proxy.environment.get(DNS_CAPTURE).map_or("false", String::as_str).to_owned();
        // The variable comes before `proxyMetadata`, which is in PROXY_CONFIG.
        self.proxy.environment.insert(DNS_CAPTURE.to_owned(), captures);
        Self { redirection: earlier.redirection, ..self }
    }

    /// Returns true if istio-iptables redirects DNS.
    #[must_use]
    pub fn redirects_dns(&self) -> bool {
        // As Go's `strconv.ParseBool` reads it.
        let value = self.redirection.environment.get(DNS_CAPTURE);
        value.is_some_and(|value| ["1", "t", "T", "true", "TRUE", "True"].contains(&value.as_str()))
    }

    /// Returns true if native nftables rules, which `iptables` does not show, redirect traffic.
    #[must_use]
    pub fn is_redirected_by_nftables(&self) -> bool {
        self.redirection.args.iter().any(|argument| argument == "--native-nftables")
    }
}

/// Takes the proxy and the redirection of the pod with its patch.
pub(super) fn rendered(pod: &Pod, sandbox: &Sandbox) -> Result<Rendered> {
    let spec = pod.spec.as_ref().context("it has no spec")?;
    let all = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let named = |names: &[&str], missing: &str| {
        let mut found = all().filter(|container| names.contains(&container.name.as_str()));
        let one = found.next().context(missing)?;
        // A tenant's value in the template may have added another one.
        found.next().is_none().then_some(one).context(format_args!("it has more than one container {}", one.name))
    };
    let proxy = named(&[PROXY_CONTAINER], "it has no container istio-proxy")?;
    let redirection = named(&["istio-init", "istio-validation"], "it redirects no traffic")?;
    let mut redirection = program(redirection, pod, sandbox)?;
    redirection.args.retain(|argument| !ONLY_CHECKS.contains(&argument.as_str()));
    let mode = value_after(&mut redirection.args, "-m").context("it has no -m")?;
    if mode != "REDIRECT" {
        return Err(Error::new(format_args!("interceptionMode {mode} is not supported beside a pod, REDIRECT is")));
    }
    // It runs as root, and a ProxyConfig of the pod's namespace sets variables, too.
    redirection.environment.retain(|name, _| name.starts_with("ISTIO_") || name == "INVALID_DROP");
    // istio-iptables joins them to lines for iptables-restore.
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_.:,*/=- ".contains(c);
    let is_one = |value: &&String| value.chars().all(is_word) && !value.contains(" -");
    if let Some(value) = redirection.args.iter().chain(redirection.environment.values()).find(|value| !is_one(value)) {
        return Err(Error::new(format_args!("its value {value:?} for istio-iptables may be a rule")));
    }
    Ok(Rendered { proxy: program(proxy, pod, sandbox)?, redirection })
}

/// Returns the argument after an option.
pub(crate) fn value_after<'a>(args: &'a mut [String], option: &str) -> Option<&'a mut String> {
    let at = args.iter().position(|argument| argument == option)?;
    args.get_mut(at + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn program(variables: &[(&str, &str)]) -> Program {
        let environment = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Program { environment, ..Program::default() }
    }

    #[test]
    fn upgraded_proxy_answers_dns_that_its_pod_redirects() {
        let captures = |value| program(&[(DNS_CAPTURE, value)]);
        let redirection = Program { args: vec!["-m".to_owned()], environment: BTreeMap::new() };
        for (first, expected) in [(captures("1"), "1"), (captures("false"), "false"), (program(&[]), "false")] {
            for given in [captures("false"), captures("true"), program(&[])] {
                let earlier = Rendered { proxy: first.clone(), redirection: redirection.clone() };
                let upgraded = Rendered { proxy: given, redirection: program(&[]) }.after(earlier);
                assert_eq!(upgraded, Rendered { proxy: captures(expected), redirection: redirection.clone() });
            }
        }
    }

    #[test]
    fn redirection_of_dns_is_known() {
        for (value, expected) in
            [("1", true), ("true", true), ("TRUE", true), ("false", false), ("0", false), ("", false)]
        {
            let rendered = Rendered { redirection: program(&[(DNS_CAPTURE, value)]), ..Rendered::default() };
            assert_eq!(rendered.redirects_dns(), expected, "{value}");
        }
        assert!(!Rendered::default().redirects_dns());
    }

    #[test]
    fn redirection_by_nftables_is_known() {
        for (argument, expected) in [("--native-nftables", true), ("--native-nftables=false", false), ("-m", false)] {
            let redirection = Program { args: vec![argument.to_owned()], ..Program::default() };
            let rendered = Rendered { redirection, ..Rendered::default() };
            assert_eq!(rendered.is_redirected_by_nftables(), expected, "{argument}");
        }
    }
}
