//! containerd's handler of the runtime class, by containerd's own configuration.

use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::install::HANDLER;

const NEXT: &str = "next: docs/node-operations.md, \"Install\"";

/// Fails where pods of the handler would run without a proxy, or outside of their pods' cgroups (containerd#4900). Other options may
/// differ from the default handler's for a reason.
pub fn check(configuration: &Value, cni_conf_dir: &str) -> Result<()> {
    let containerd = &configuration["containerd"];
    let handler = containerd["runtimes"].get(HANDLER);
    let handler = handler.context(format_args!("containerd has no handler {HANDLER}; {NEXT}"))?;
    let directory = handler["cniConfDir"].as_str().unwrap_or_default();
    if directory.trim_end_matches('/') != cni_conf_dir.trim_end_matches('/') {
        return Err(Error::new(format_args!(
            "containerd's handler {HANDLER} has cni_conf_dir {directory:?} and not {cni_conf_dir:?}, so its pods have no proxy; {NEXT}"
        )));
    }
    let default = containerd["defaultRuntimeName"].as_str().unwrap_or_default();
    let by_systemd = |runtime: &Value| runtime["options"]["SystemdCgroup"] == true;
    let [own, others] = [by_systemd(handler), by_systemd(&containerd["runtimes"][default])];
    if own != others {
        return Err(Error::new(format_args!(
            "containerd's handler {HANDLER} has SystemdCgroup = {own}, and the default handler {default} {others}; {NEXT}"
        )));
    }
    Ok(())
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
            (
                "another program",
                configuration(with(json!({})), json!({"BinaryName": "nvidia-container-runtime"})),
                Ok(()),
            ),
            ("no handler", json!({"containerd": {"runtimes": {}}}), Err("no handler istio-aux")),
            ("not containerd's", json!(null), Err("no handler istio-aux")),
            (
                "no directory",
                configuration(json!({"options": systemd}), systemd.clone()),
                Err("cni_conf_dir \"\" and not"),
            ),
            (
                "the primary network's",
                configuration(json!({"cniConfDir": "/etc/cni/net.d"}), json!({})),
                Err("cni_conf_dir \"/etc/cni/net.d\" and not"),
            ),
            ("another cgroup driver", configuration(with(json!({})), systemd), Err("SystemdCgroup = false")),
        ] {
            let found = check(&configuration, "/etc/cni/istio-aux.d").map_err(|error| error.to_string());
            match expected {
                Ok(()) => assert_eq!(found, Ok(()), "{case}"),
                Err(part) => assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{case}: {found:?}"),
            }
        }
    }
}
