//! The container runtime's input to a plugin: environment variables, and a network configuration on standard input.

use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::protocol::{Dns, Sandbox};

/// The agent's directory where the configuration names no other.
pub const RUN_DIR: &str = "/run/istio-aux";

/// Holds the environment of a call, by <https://www.cni.dev/docs/spec/#parameters>.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `CNI_COMMAND`
    pub command: String,
    /// `CNI_CONTAINERID`
    pub container_id: String,
    /// `CNI_NETNS`
    pub netns: String,
    /// `CNI_ARGS`
    pub args: String,
}

impl Environment {
    /// Reads the variables.
    #[must_use]
    pub fn read() -> Self {
        let text = |name| std::env::var(name).unwrap_or_default();
        Self {
            command: text("CNI_COMMAND"),
            container_id: text("CNI_CONTAINERID"),
            netns: text("CNI_NETNS"),
            args: text("CNI_ARGS"),
        }
    }

    /// Returns the value of a key of `CNI_ARGS`.
    fn arg(&self, key: &str) -> Option<String> {
        let pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| *name == key).map(|(_, value)| value.to_owned()).next_back()
    }

    /// Returns the sandbox' id. It becomes a file's name, so it must be one that the specification allows.
    pub fn sandbox_id(&self) -> Result<String, Failure> {
        let id = &self.container_id;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if id.starts_with(|c: char| c.is_ascii_alphanumeric()) && id.chars().all(is_allowed) {
            Ok(id.clone())
        } else {
            Err(Failure::Input(format!("CNI_CONTAINERID {id:?} is not a container id")))
        }
    }
}

/// Holds the plugin's part of the network configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// The version of the specification that the runtime and the plugins use.
    pub cni_version: String,
    /// The directory of the agent's socket.
    #[serde(default = "run_dir")]
    pub run_dir: PathBuf,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    /// The result of the plugins before this one; printed as it came.
    pub prev_result: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeConfig {
    #[serde(default)]
    cgroup_path: String,
    #[serde(default)]
    dns: Dns,
}

fn run_dir() -> PathBuf {
    RUN_DIR.into()
}

/// Reads the sandbox of an ADD.
pub fn sandbox(environment: &Environment, configuration: &Configuration) -> Result<Sandbox, Failure> {
    let arg = |key| environment.arg(key).ok_or_else(|| Failure::Input(format!("CNI_ARGS has no {key}")));
    let no_result = || Failure::Input("there is no prevResult: another plugin must come first".into());
    let previous = configuration.prev_result.as_ref().ok_or_else(no_result)?;
    Ok(Sandbox {
        id: environment.sandbox_id()?,
        netns: environment.netns.clone(),
        namespace: arg("K8S_POD_NAMESPACE")?,
        name: arg("K8S_POD_NAME")?,
        uid: arg("K8S_POD_UID")?,
        addresses: addresses(previous)?,
        cgroup_path: configuration.runtime_config.cgroup_path.clone(),
        dns: configuration.runtime_config.dns.clone(),
    })
}

/// Reads the addresses of a result, whose `ips` have the same form in each version of the specification.
fn addresses(previous: &RawValue) -> Result<Vec<IpAddr>, Failure> {
    let invalid = |what: &dyn Display| Failure::Input(format!("prevResult: {what}"));
    let result: Value = serde_json::from_str(previous.get()).map_err(|error| invalid(&error))?;
    let texts = result["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str());
    let parsed = texts.map(|text| {
        let address = text.split_once('/').map_or(text, |(address, _)| address);
        address.parse().map_err(|_| invalid(&format_args!("not an address: {text:?}")))
    });
    let addresses: Vec<_> = parsed.collect::<Result<_, _>>()?;
    if addresses.is_empty() { Err(invalid(&"no address")) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURATION: &str = r#"{"cniVersion": "1.0.0", "name": "n", "type": "istio-aux-cni",
        "runtimeConfig": {"cgroupPath": "/kubepods/pod1", "dns": {"Servers": ["10.96.0.10"], "Searches": null, "Options": ["ndots:5"]}},
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.7/24"}, {"address": "fd00::7/64"}]}}"#;

    fn environment() -> Environment {
        Environment {
            command: "ADD".into(),
            container_id: "abc1".into(),
            netns: "/run/netns/x".into(),
            args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=u".into(),
        }
    }

    #[test]
    fn sandbox_is_read_from_environment_and_configuration() {
        let sandbox = sandbox(&environment(), &serde_json::from_str(CONFIGURATION).unwrap()).unwrap();
        let expected = Sandbox {
            id: "abc1".into(),
            netns: "/run/netns/x".into(),
            namespace: "a".into(),
            name: "b".into(),
            uid: "u".into(),
            addresses: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
            cgroup_path: "/kubepods/pod1".into(),
            dns: Dns { servers: vec!["10.96.0.10".into()], options: vec!["ndots:5".into()], ..Dns::default() },
        };
        assert_eq!(sandbox, expected);
    }

    #[test]
    fn incomplete_input_is_named() {
        let configuration = |text: &str| serde_json::from_str::<Configuration>(text).unwrap();
        let without_uid = Environment { args: "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b".into(), ..environment() };
        let path = Environment { container_id: "../x".into(), ..environment() };
        let cases = [
            (without_uid, CONFIGURATION, "K8S_POD_UID"),
            (path, CONFIGURATION, "container id"),
            (environment(), r#"{"cniVersion": "1.0.0"}"#, "prevResult"),
            (environment(), r#"{"cniVersion": "1.0.0", "prevResult": {"ips": []}}"#, "no address"),
            (environment(), r#"{"cniVersion": "1.0.0", "prevResult": {"ips": [{"address": "x"}]}}"#, "\"x\""),
        ];
        for (environment, text, named) in cases {
            let error = sandbox(&environment, &configuration(text)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
