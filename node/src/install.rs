//! Installs the CNI plugin, and a CNI configuration: a copy of the primary network's, with the plugin appended.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::{Context, Result};

/// The plugin's name and file name.
const PLUGIN: &str = "istio-aux-cni";

/// Copies the plugin into the runtime's directory of plugins.
pub fn plugin(program: &Path, bin_dir: &Path) -> io::Result<()> {
    let temporary = bin_dir.join(format!(".{PLUGIN}"));
    fs::copy(program, &temporary)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
    fs::rename(temporary, bin_dir.join(PLUGIN))
}

/// Writes the CNI configuration of the runtime class, unless it is up to date with the primary network's.
pub fn configuration(primary_dir: &Path, own_dir: &Path) -> Result<()> {
    let primary = first_configuration(primary_dir).context(primary_dir.display())?;
    let primary = primary.context(format_args!("{} has no network configuration", primary_dir.display()))?;
    let text = fs::read_to_string(&primary).context(primary.display())?;
    let chained = chained(&text).context(primary.display())?;
    let own = own_dir.join("10-istio-aux.conflist");
    if fs::read_to_string(&own).is_ok_and(|present| present == chained) {
        return Ok(());
    }
    let temporary = own.with_extension("new");
    let written = fs::create_dir_all(own_dir)
        .and_then(|()| fs::write(&temporary, chained))
        .and_then(|()| fs::rename(&temporary, &own));
    written.context(own.display())
}

/// Returns the file that the runtime uses: the first by name.
fn first_configuration(directory: &Path) -> io::Result<Option<PathBuf>> {
    let is_configuration = |file: &PathBuf| {
        file.extension().is_some_and(|suffix| suffix == "conflist" || suffix == "conf" || suffix == "json")
    };
    Ok(fs::read_dir(directory)?.flatten().map(|entry| entry.path()).filter(is_configuration).min())
}

/// Appends the plugin to the primary CNI configuration. The network keeps its name: IPAM plugins store allocations under it.
fn chained(primary: &str) -> Result<String> {
    let mut configuration: Value = serde_json::from_str(primary)?;
    if configuration.get("plugins").is_none() {
        let [version, name] = ["cniVersion", "name"].map(|key| configuration[key].clone());
        configuration = json!({"cniVersion": version, "name": name, "plugins": [configuration]});
    }
    let plugins = configuration["plugins"].as_array_mut().context("plugins is not a list")?;
    plugins.push(json!({"type": PLUGIN, "capabilities": {"cgroupPath": true}}));
    Ok(serde_json::to_string_pretty(&configuration)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_is_appended_to_primary_configuration() {
        let list = r#"{"cniVersion": "1.0.0", "name": "calico", "plugins": [{"type": "calico", "x": 1}]}"#;
        let single = r#"{"cniVersion": "1.0.0", "name": "calico", "type": "calico", "x": 1}"#;
        for primary in [list, single] {
            let chained: Value = serde_json::from_str(&chained(primary).unwrap()).unwrap();
            let types: Vec<_> = chained["plugins"].as_array().unwrap().iter().map(|plugin| &plugin["type"]).collect();
            assert_eq!((&chained["name"], types), (&json!("calico"), vec![&json!("calico"), &json!(PLUGIN)]));
            assert_eq!(chained["plugins"][0]["x"], 1);
        }
    }

    #[test]
    fn configuration_follows_first_primary_file() {
        let (primary, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |name: &str, network: &str| {
            let text = format!(r#"{{"cniVersion": "1.0.0", "name": "{network}", "plugins": []}}"#);
            fs::write(primary.path().join(name), text).unwrap();
        };
        let named = || {
            let text = fs::read_to_string(own.path().join("10-istio-aux.conflist")).unwrap();
            serde_json::from_str::<Value>(&text).unwrap()["name"].clone()
        };
        let error = configuration(primary.path(), own.path()).unwrap_err().to_string();
        assert!(error.contains("no network configuration"), "{error}");
        write("20-b.conflist", "b");
        configuration(primary.path(), own.path()).unwrap();
        assert_eq!(named(), "b");
        write("10-a.conflist", "a");
        configuration(primary.path(), own.path()).unwrap();
        assert_eq!(named(), "a");
    }
}
