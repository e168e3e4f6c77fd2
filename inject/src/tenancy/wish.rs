//! What a namespace asks for, by its labels and its annotation. Pure.

use std::collections::BTreeMap;

use contract::names::{
    DISABLED, ENABLED, MESH_LABEL, PIPELINES_ACCOUNTS_ANNOTATION, PIPELINES_TOKEN_LABEL, RUN_TO_COMPLETION,
    TENANCY_LABEL,
};

/// Labels or annotations.
pub type Map = BTreeMap<String, String>;

/// The account of pods that name none.
const DEFAULT_ACCOUNT: &str = "default";
/// More accounts than this are a mistake.
const ACCOUNT_COUNT_LIMIT: usize = 100;
/// The longest name of an object, in bytes.
const NAME_LENGTH_LIMIT: usize = 253;

/// What a namespace asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// The objects of a tenant, for these service accounts.
    Objects {
        /// Names of service accounts, each once.
        accounts: Vec<String>,
    },
    /// Nothing: objects that were kept before are removed.
    Nothing,
    /// It cannot be understood, and nothing is changed. The text says why and what to do.
    Unclear(String),
}

/// Reads what a namespace asks for.
#[must_use]
pub fn wish(labels: &Map, annotations: &Map) -> Wish {
    match labels.get(TENANCY_LABEL).map(String::as_str) {
        None | Some(DISABLED) => Wish::Nothing,
        Some(ENABLED) => {
            let accounts = annotations.get(PIPELINES_ACCOUNTS_ANNOTATION).map_or(DEFAULT_ACCOUNT, String::as_str);
            accounts_of(accounts).map_or_else(
                |reason| Wish::Unclear(format!("annotation {PIPELINES_ACCOUNTS_ANNOTATION}: {reason}")),
                |accounts| Wish::Objects { accounts },
            )
        }
        Some(other) => Wish::Unclear(unknown(TENANCY_LABEL, other, ENABLED)),
    }
}

/// Returns the service accounts of a list that is separated by commas, each once. `Err` is one line.
pub fn accounts_of(list: &str) -> Result<Vec<String>, String> {
    let mut accounts: Vec<String> = Vec::new();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !is_account_name(name) {
            return Err(format!("{name:?} is no name of a service account; it takes names such as default,trainer"));
        }
        if !accounts.iter().any(|other| other == name) {
            accounts.push(name.to_owned());
        }
    }
    match accounts.len() {
        0 => Err("it names no service account; it takes names such as default,trainer".to_owned()),
        1..=ACCOUNT_COUNT_LIMIT => Ok(accounts),
        count => Err(format!("it names {count} service accounts, and {ACCOUNT_COUNT_LIMIT} are allowed")),
    }
}

/// Whether a text is a DNS subdomain, as names of service accounts are.
fn is_account_name(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(|byte| is_alphanumeric(*byte))
            && bytes.last().is_some_and(|byte| is_alphanumeric(*byte))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
    };
    name.len() <= NAME_LENGTH_LIMIT && name.split('.').all(is_label)
}

/// Returns a line for each label of ours that has an invalid value.
#[must_use]
pub fn unknown_values(labels: &Map) -> Vec<String> {
    let known = [(TENANCY_LABEL, ENABLED), (PIPELINES_TOKEN_LABEL, ENABLED), (MESH_LABEL, RUN_TO_COMPLETION)];
    let lines = known.into_iter().filter_map(|(label, value)| {
        let given = labels.get(label)?;
        (given != value && given != DISABLED).then(|| unknown(label, given, value))
    });
    lines.collect()
}

fn unknown(label: &str, given: &str, takes: &str) -> String {
    format!("label {label}: invalid value {given:?}; use {takes} or {DISABLED}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map<'t>(pairs: impl IntoIterator<Item = (&'t str, &'t str)>) -> Map {
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn labels_and_annotation_say_what_a_namespace_asks_for() {
        let objects = |accounts: &[&str]| Wish::Objects { accounts: accounts.iter().map(|&a| a.to_owned()).collect() };
        let unclear = |text: &str| Wish::Unclear(text.to_owned());
        let cases = [
            (None, None, Wish::Nothing),
            (None, Some("trainer"), Wish::Nothing),
            (Some("disabled"), None, Wish::Nothing),
            (Some("enabled"), None, objects(&["default"])),
            (Some("enabled"), Some("trainer, default-editor ,trainer,"), objects(&["trainer", "default-editor"])),
            (Some("enabled"), Some("a.b-2"), objects(&["a.b-2"])),
            (
                Some("enabled"),
                Some("system:serviceaccounts"),
                unclear(
                    "annotation istio-aux.io/pipelines-accounts: \"system:serviceaccounts\" is no name of a service account; it takes names such as default,trainer",
                ),
            ),
            (
                Some("enabled"),
                Some(" , "),
                unclear(
                    "annotation istio-aux.io/pipelines-accounts: it names no service account; it takes names such as default,trainer",
                ),
            ),
            (
                Some("true"),
                None,
                unclear("label istio-aux.io/tenancy: invalid value \"true\"; use enabled or disabled"),
            ),
        ];
        for (label, annotation, expected) in cases {
            let labels = map(label.map(|value| (TENANCY_LABEL, value)));
            let annotations = map(annotation.map(|value| (PIPELINES_ACCOUNTS_ANNOTATION, value)));
            assert_eq!(wish(&labels, &annotations), expected, "{labels:?} {annotations:?}");
        }
    }

    #[test]
    fn too_many_accounts_are_a_mistake() {
        let names: Vec<String> = (0..=ACCOUNT_COUNT_LIMIT).map(|n| format!("a{n}")).collect();
        assert_eq!(accounts_of(&names.join(",")).unwrap_err(), "it names 101 service accounts, and 100 are allowed");
        assert_eq!(accounts_of(&names[1..].join(",")).unwrap().len(), 100);
    }

    #[test]
    fn unknown_values_of_our_labels_are_named() {
        let labels = map([
            ("istio-aux.io/tenancy", "enabled"),
            ("istio-aux.io/pipelines-token", "yes"),
            ("istio-aux.io/mesh", "enabled"),
            ("other", "x"),
        ]);
        assert_eq!(
            unknown_values(&labels),
            [
                "label istio-aux.io/pipelines-token: invalid value \"yes\"; use enabled or disabled",
                "label istio-aux.io/mesh: invalid value \"enabled\"; use run-to-completion or disabled",
            ]
        );
        assert!(unknown_values(&map([("istio-aux.io/mesh", "disabled")])).is_empty());
    }
}
