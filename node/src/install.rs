//! Installs the CNI plugin, and a CNI configuration: a copy of the primary network's, with the plugin appended.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::{Context, Result};

/// containerd's handler of the runtime class.
pub(crate) const HANDLER: &str = "istio-aux";
/// The plugin's name and file name.
const PLUGIN: &str = "istio-aux-cni";

/// Copies the plugin into the runtime's directory of plugins, unless it is there.
pub fn plugin(program: &Path, bin_dir: &Path) -> Result<()> {
    let program = fs::read(program).context(program.display())?;
    replace(&bin_dir.join(PLUGIN), &program, Permissions::from_mode(0o755))
}

/// Writes the CNI configuration of the runtime class, unless it is up to date with the primary network's, whose mode it has: it may
/// contain a token.
pub fn configuration(primary_dir: &Path, own_dir: &Path) -> Result<()> {
    let primary = first_configuration(primary_dir).context(primary_dir.display())?;
    let primary = primary.context(format_args!("{} has no network configuration", primary_dir.display()))?;
    let text = fs::read_to_string(&primary).context(primary.display())?;
    let chained = chained(&text).context(primary.display())?;
    let permissions = fs::metadata(&primary).context(primary.display())?.permissions();
    fs::create_dir_all(own_dir).context(own_dir.display())?;
    replace(&own_dir.join("10-istio-aux.conflist"), chained.as_bytes(), permissions)
}

/// Writes a file as a whole, unless it is already as it should be.
fn replace(file: &Path, content: &[u8], permissions: Permissions) -> Result<()> {
    let has_mode = fs::metadata(file).is_ok_and(|present| present.mode() & 0o7777 == permissions.mode() & 0o7777);
    if has_mode && fs::read(file).is_ok_and(|present| present == content) {
        return Ok(());
    }
    // The runtime reads no file that ends like this.
    let temporary = file.with_extension("new");
    let write = || {
        let mut new = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        new.write_all(content)?;
        new.set_permissions(permissions)?;
        new.sync_all()?;
        fs::rename(&temporary, file)
    };
    write().context(file.display())
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
    plugins.push(json!({"type": PLUGIN, "capabilities": {"cgroupPath": true, "dns": true}}));
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
    fn plugin_is_written_where_it_differs() {
        let (from, bin_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (program, installed) = (from.path().join("program"), bin_dir.path().join(PLUGIN));
        let inode = || fs::metadata(&installed).unwrap().ino();
        let error = plugin(&program, bin_dir.path()).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
        fs::write(&program, "1").unwrap();
        plugin(&program, bin_dir.path()).unwrap();
        let first = inode();
        plugin(&program, bin_dir.path()).unwrap();
        assert_eq!((inode(), fs::metadata(&installed).unwrap().mode() & 0o777), (first, 0o755));
        fs::write(&program, "2").unwrap();
        plugin(&program, bin_dir.path()).unwrap();
        assert_eq!(fs::read_to_string(&installed).unwrap(), "2");
    }

    #[test]
    fn configuration_keeps_mode_of_primary() {
        let (primary, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = primary.path().join("10-a.conflist");
        fs::write(&file, r#"{"cniVersion": "1.0.0", "name": "a", "plugins": []}"#).unwrap();
        for mode in [0o600, 0o644, 0o640] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            configuration(primary.path(), own.path()).unwrap();
            let written = fs::metadata(own.path().join("10-istio-aux.conflist")).unwrap().mode();
            assert_eq!(written & 0o777, mode, "{written:o}");
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
