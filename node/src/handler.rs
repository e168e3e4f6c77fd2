//! containerd's handler of the runtime class and its CNI directories, by containerd's own configuration.

use clap::Args;
use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::install::HANDLER;

const NEXT: &str = "next: docs/node-operations.md, \"Install\"";

/// Names the directories of CNI that the agent writes to and reads, as paths of the node.
#[derive(Debug, Args)]
pub struct CniDirectories {
    /// The directory that the handler's `cni_conf_dir` must name
    #[arg(long = "cni-conf-dir", value_name = "DIRECTORY", default_value = "/etc/cni/istio-aux.d")]
    own: String,
    /// The directory that must be one of containerd's `bin_dirs`
    #[arg(long = "bin-dir", value_name = "DIRECTORY", default_value = "/opt/cni/bin")]
    programs: String,
    /// The directory that must be containerd's `conf_dir`
    #[arg(long = "conf-dir", value_name = "DIRECTORY", default_value = "/etc/cni/net.d")]
    primary: String,
}

/// Fails where pods of the handler would not start, run without a proxy, or outside of their pods' cgroups (containerd#4900). Other
/// options may differ from the default handler's for a reason.
pub fn check(configuration: &Value, cni: &CniDirectories) -> Result<()> {
    check_handler(&configuration["containerd"], &cni.own)?;
    let containerd = &configuration["cni"];
    // A list since containerd 2.1.
    let programs = containerd["binDirs"].as_array().into_iter().flatten().chain([&containerd["binDir"]]);
    check_directory("binDir", &cni.programs, programs)?;
    check_directory("primaryDir", &cni.primary, [&containerd["confDir"]])
}

/// Fails unless a directory of the chart is one of containerd's, which may not be known.
fn check_directory<'a>(name: &str, chart: &str, containerd: impl IntoIterator<Item = &'a Value>) -> Result<()> {
    let known: Vec<_> = containerd.into_iter().filter_map(Value::as_str).filter(|known| !known.is_empty()).collect();
    if known.is_empty() || known.iter().any(|known| is_same(known, chart)) {
        return Ok(());
    }
    let known = known.join(", ");
    Err(Error::new(format_args!(
        "containerd uses {known}, and cni.{name} is {chart}; next: set the chart's cni.{name}"
    )))
}

fn is_same(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

fn check_handler(containerd: &Value, cni_conf_dir: &str) -> Result<()> {
    let handler = containerd["runtimes"].get(HANDLER);
    let handler = handler.context(format_args!("containerd has no handler {HANDLER}; {NEXT}"))?;
    let directory = handler["cniConfDir"].as_str().unwrap_or_default();
    if !is_same(directory, cni_conf_dir) {
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
            assert_is(case, &check(&configuration, &directories()), expected);
        }
    }

    fn directories() -> CniDirectories {
        let [own, programs, primary] =
            ["/etc/cni/istio-aux.d", "/opt/cni/bin", "/etc/cni/net.d"].map(ToOwned::to_owned);
        CniDirectories { own, programs, primary }
    }

    fn assert_is(case: &str, found: &Result<()>, expected: Result<(), &str>) {
        let found = found.as_ref().map_err(ToString::to_string);
        match expected {
            Ok(()) => assert_eq!(found, Ok(&()), "{case}"),
            Err(part) => assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{case}: {found:?}"),
        }
    }

    #[test]
    fn directories_are_compared_with_containerds() {
        for (case, cni, expected) in [
            (
                "containerd 2.1",
                json!({"binDirs": ["/usr/lib/cni", "/opt/cni/bin/"], "confDir": "/etc/cni/net.d"}),
                Ok(()),
            ),
            ("before", json!({"binDir": "/opt/cni/bin", "confDir": "/etc/cni/net.d/"}), Ok(())),
            ("not known", json!(null), Ok(())),
            (
                "k3s",
                json!({"binDirs": ["/var/lib/rancher/k3s/data/cni"]}),
                Err("containerd uses /var/lib/rancher/k3s/data/cni, and cni.binDir is /opt/cni/bin"),
            ),
            (
                "another network",
                json!({"binDir": "/opt/cni/bin", "confDir": "/etc/cni/other"}),
                Err("containerd uses /etc/cni/other, and cni.primaryDir is /etc/cni/net.d"),
            ),
        ] {
            let runtimes = json!({"istio-aux": {"cniConfDir": "/etc/cni/istio-aux.d"}});
            let configuration = json!({"containerd": {"runtimes": runtimes}, "cni": cni});
            assert_is(case, &check(&configuration, &directories()), expected);
        }
    }
}
