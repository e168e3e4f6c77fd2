//! containerd's handler of the runtime class, by containerd's own configuration.

use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::install::HANDLER;

const NEXT: &str = "next: docs/node.md, \"Install\"";

/// Fails where pods of the handler would run without a proxy, or not as pods of the default handler do (containerd#4900).
pub fn check(configuration: &Value) -> Result<()> {
    let containerd = &configuration["containerd"];
    let handler = containerd["runtimes"].get(HANDLER);
    let handler = handler.context(format_args!("containerd has no handler {HANDLER}; {NEXT}"))?;
    let directory = handler["cniConfDir"].as_str().unwrap_or_default();
    if directory.is_empty() {
        return Err(Error::new(format_args!(
            "containerd's handler {HANDLER} has no cni_conf_dir, so its pods have no proxy; {NEXT}"
        )));
    }
    let name = containerd["defaultRuntimeName"].as_str().unwrap_or_default();
    let options = |of: &Value, key: &str| of["options"].get(key).cloned().filter(is_set);
    let default = &containerd["runtimes"][name];
    let keys =
        default["options"].as_object().into_iter().chain(handler["options"].as_object()).flat_map(|all| all.keys());
    let differs = |key: &&String| options(default, key) != options(handler, key);
    let mut differing: Vec<_> = keys.filter(differs).map(String::as_str).collect();
    differing.sort_unstable();
    differing.dedup();
    if !differing.is_empty() {
        return Err(Error::new(format_args!(
            "containerd's handlers {HANDLER} and {name} differ in the options {}; {NEXT}",
            differing.join(", ")
        )));
    }
    Ok(())
}

/// Returns false for a value that means the same as none.
fn is_set(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && value != "" && value != 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn handler_is_compared_with_the_default_one() {
        let configuration = |handler: Value, options: Value| {
            let runtimes = json!({"istio-aux": handler, "runc": {"options": options}});
            json!({"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}})
        };
        let with = |options: Value| json!({"cniConfDir": "/etc/cni/istio-aux.d", "options": options});
        let systemd = json!({"SystemdCgroup": true, "BinaryName": ""});
        for (case, configuration, expected) in [
            ("as it should be", configuration(with(systemd.clone()), systemd.clone()), Ok(())),
            ("without options", configuration(with(json!(null)), json!({"SystemdCgroup": false})), Ok(())),
            ("no handler", json!({"containerd": {"runtimes": {}}}), Err("no handler istio-aux")),
            ("not containerd's", json!(null), Err("no handler istio-aux")),
            ("no directory", configuration(json!({"options": systemd}), systemd.clone()), Err("no cni_conf_dir")),
            ("another cgroup driver", configuration(with(json!({})), systemd), Err("the options SystemdCgroup;")),
            (
                "another program",
                configuration(with(json!({})), json!({"BinaryName": "nvidia-container-runtime"})),
                Err("the options BinaryName;"),
            ),
        ] {
            let found = check(&configuration).map_err(|error| error.to_string());
            match expected {
                Ok(()) => assert_eq!(found, Ok(()), "{case}"),
                Err(part) => assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{case}: {found:?}"),
            }
        }
    }
}
