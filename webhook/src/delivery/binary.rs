//! The shim's binary, and its `ConfigMap`.

use std::fmt::Write;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use contract::names::{MANAGED_BY_LABEL, SHIM_CONFIG_MAP_KEY, SHIM_CONFIG_MAP_PREFIX, TENANCY_MANAGER};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::api::Kind;

/// `ConfigMaps`.
pub(crate) const CONFIG_MAPS: Kind = Kind("", "v1", "ConfigMap", "configmaps");
/// Where the image of the webhook has the shim's binary.
pub(crate) const SHIM_BINARY_PATH: &str = "/aux-shim";
/// The API server takes no larger `ConfigMap`, in bytes.
const SIZE_LIMIT: usize = 1 << 20;
/// How many bytes of the hash are in a name: 10 digits.
const HASH_LENGTH: usize = 5;

/// The shim's binary.
#[derive(Debug, Clone)]
pub(crate) struct ShimBinary {
    hash: String,
    base64: String,
}

impl ShimBinary {
    /// Reads the file. `Err` is one line.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let name = file.display();
        let bytes = std::fs::read(file).map_err(|error| format!("cannot read the shim's binary {name}: {error}"))?;
        if !bytes.starts_with(b"\x7fELF") {
            return Err(format!("{name} is no program"));
        }
        if bytes.len() > SIZE_LIMIT {
            return Err(format!("{name} has {} bytes, and a ConfigMap takes {SIZE_LIMIT}", bytes.len()));
        }
        Ok(Self::of(&bytes))
    }

    /// The binary with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hash = String::new();
        for byte in &digest(&SHA256, bytes).as_ref()[..HASH_LENGTH] {
            // Writing to a String cannot fail.
            let _ = write!(hash, "{byte:02x}");
        }
        Self { hash, base64: BASE64_STANDARD.encode(bytes) }
    }

    /// The name of its `ConfigMap`: another binary has another name, so that no running pod's file ever changes.
    pub(crate) fn config_map_name(&self) -> String {
        format!("{SHIM_CONFIG_MAP_PREFIX}{}", self.hash)
    }

    /// Its `ConfigMap`, for any namespace.
    pub(super) fn config_map(&self) -> Value {
        let labels = json!({
            MANAGED_BY_LABEL: TENANCY_MANAGER,
            "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
        });
        json!({
            "apiVersion": CONFIG_MAPS.api_version(), "kind": CONFIG_MAPS.2,
            "metadata": {"name": self.config_map_name(), "labels": labels},
            "immutable": true,
            "binaryData": {SHIM_CONFIG_MAP_KEY: self.base64},
        })
    }

    /// Whether a `ConfigMap` holds this binary and nothing else.
    pub(super) fn is_in(&self, config_map: &Value) -> bool {
        let is_empty = |field: &str| config_map[field].as_object().is_none_or(serde_json::Map::is_empty);
        is_empty("data") && config_map["binaryData"] == json!({SHIM_CONFIG_MAP_KEY: self.base64})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn the_name_is_the_hash_of_the_bytes() {
        // printf '\177ELF' | sha256sum
        let binary = ShimBinary::read(file(b"\x7fELF").path()).unwrap();
        assert_eq!(binary.config_map_name(), "istio-aux-shim-3bdbb4fe83");
        assert_ne!(ShimBinary::of(b"\x7fELF\n").config_map_name(), binary.config_map_name());
        assert_eq!(binary.config_map()["binaryData"], json!({"aux-shim": "f0VMRg=="}));
        assert_eq!(binary.config_map()["immutable"], true);
    }

    #[test]
    fn what_is_no_binary_of_the_shim_is_refused_in_one_line() {
        let refused = |path: &Path| ShimBinary::read(path).unwrap_err();
        assert!(refused(Path::new("/nowhere/aux-shim")).contains("cannot read the shim's binary /nowhere/aux-shim"));
        assert!(refused(file(b"#!/bin/sh\n").path()).ends_with("is no program"));
        let mut large = b"\x7fELF".to_vec();
        large.resize(SIZE_LIMIT + 1, 0);
        assert!(refused(file(&large).path()).ends_with("has 1048577 bytes, and a ConfigMap takes 1048576"));
    }

    #[test]
    fn only_the_same_bytes_and_nothing_beside_them_count() {
        let binary = ShimBinary::of(b"\x7fELF");
        let with = |field: &str, value: Value| {
            let mut config_map = binary.config_map();
            config_map[field] = value;
            config_map
        };
        assert!(binary.is_in(&binary.config_map()));
        assert!(!binary.is_in(&with("data", json!({"more": "x"}))));
        assert!(!binary.is_in(&with("binaryData", json!({"aux-shim": "f0VMRgo="}))));
        assert!(!binary.is_in(&with("binaryData", json!({"aux-shim": "f0VMRg==", "more": "x"}))));
        assert!(!binary.is_in(&json!({})));
    }
}
