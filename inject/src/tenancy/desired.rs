//! What a namespace asks for, by its labels and annotations. Pure.

use std::collections::{BTreeMap, HashSet};

use contract::names::{
    DISABLED, ENABLED, MESH_LABEL, PIPELINES_ACCOUNTS_ANNOTATION, PIPELINES_ROLE, PIPELINES_ROLE_ANNOTATION,
    PIPELINES_TOKEN_LABEL, RUN_TO_COMPLETION, TENANCY_LABEL,
};

use crate::text::shortened;

/// Labels or annotations.
pub type Map = BTreeMap<String, String>;

/// More accounts than this are a mistake.
const ACCOUNT_COUNT_LIMIT: usize = 100;
/// The longest name of an object, in bytes.
const NAME_LENGTH_LIMIT: usize = 253;

/// Is what a namespace asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesiredTenancy {
    /// The objects of a tenant.
    Objects {
        /// Service accounts to bind, each once. Empty if none is named.
        accounts: Vec<String>,
        /// The `ClusterRole` to which they are bound.
        role: String,
    },
    /// Nothing: objects that were kept before are removed. Any value of the label but `enabled` means this.
    Nothing,
    /// An annotation is invalid: nothing new is bound or offered.
    Invalid {
        /// Its name.
        annotation: &'static str,
        /// Says why, and what it takes.
        reason: String,
    },
}

impl DesiredTenancy {
    /// Reads what the labels and annotations of a namespace ask for.
    #[must_use]
    pub fn of(labels: &Map, annotations: &Map) -> Self {
        if labels.get(TENANCY_LABEL).map(String::as_str) != Some(ENABLED) {
            return Self::Nothing;
        }
        let annotation = |key: &str| annotations.get(key).map(String::as_str);
        let role = annotation(PIPELINES_ROLE_ANNOTATION).unwrap_or(PIPELINES_ROLE).to_owned();
        match accounts_of(annotation(PIPELINES_ACCOUNTS_ANNOTATION).unwrap_or_default()) {
            Err(reason) => Self::Invalid { annotation: PIPELINES_ACCOUNTS_ANNOTATION, reason },
            Ok(_) if !is_dns_subdomain(&role) => Self::Invalid {
                annotation: PIPELINES_ROLE_ANNOTATION,
                reason: format!("{:?} is not a name of a ClusterRole", shortened(&role)),
            },
            Ok(accounts) => Self::Objects { accounts, role },
        }
    }
}

/// Returns the service accounts of a list that is separated by commas, each once. `Err` is one line.
pub fn accounts_of(list: &str) -> Result<Vec<String>, String> {
    let (mut accounts, mut known) = (Vec::new(), HashSet::new());
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !is_dns_subdomain(name) {
            let name = shortened(name);
            return Err(format!("{name:?} is not a name of a service account; it takes names such as trainer,loader"));
        }
        if known.insert(name) {
            accounts.push(name.to_owned());
        }
    }
    match accounts.len() {
        0..=ACCOUNT_COUNT_LIMIT => Ok(accounts),
        count => Err(format!("it names {count} service accounts, and {ACCOUNT_COUNT_LIMIT} are allowed")),
    }
}

/// Returns true if a text is a DNS subdomain, as names of service accounts and Secrets are.
pub(crate) fn is_dns_subdomain(name: &str) -> bool {
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
        const ACCOUNTS: &str = PIPELINES_ACCOUNTS_ANNOTATION;
        const ROLE: &str = PIPELINES_ROLE_ANNOTATION;
        let objects = |accounts: &[&str], role: &str| DesiredTenancy::Objects {
            accounts: accounts.iter().map(|&account| account.to_owned()).collect(),
            role: role.to_owned(),
        };
        let invalid = |annotation, text: &str| DesiredTenancy::Invalid { annotation, reason: text.to_owned() };
        let none: &[(&str, &str)] = &[];
        let cases = [
            (None, none, DesiredTenancy::Nothing),
            (None, &[(ACCOUNTS, "trainer")], DesiredTenancy::Nothing),
            (Some("disabled"), &[], DesiredTenancy::Nothing),
            (Some("false"), &[(ACCOUNTS, "trainer")], DesiredTenancy::Nothing),
            (Some("enabled"), &[], objects(&[], "istio-aux-pipelines")),
            (Some("enabled"), &[(ACCOUNTS, " , ")], objects(&[], "istio-aux-pipelines")),
            (
                Some("enabled"),
                &[(ACCOUNTS, "trainer, default-editor ,trainer,a.b-2"), (ROLE, "kubeflow-pipelines-edit")],
                objects(&["trainer", "default-editor", "a.b-2"], "kubeflow-pipelines-edit"),
            ),
            (
                Some("enabled"),
                &[(ACCOUNTS, "system:serviceaccounts")],
                invalid(
                    ACCOUNTS,
                    "\"system:serviceaccounts\" is not a name of a service account; it takes names such as trainer,loader",
                ),
            ),
            (
                Some("enabled"),
                &[(ROLE, "system:masters")],
                invalid(ROLE, "\"system:masters\" is not a name of a ClusterRole"),
            ),
            (Some(""), &[], DesiredTenancy::Nothing),
        ];
        for (label, annotations, expected) in cases {
            let labels = map(label.map(|value| (TENANCY_LABEL, value)));
            assert_eq!(
                DesiredTenancy::of(&labels, &map(annotations.iter().copied())),
                expected,
                "{labels:?} {annotations:?}"
            );
        }
    }

    #[test]
    fn long_value_is_shortened() {
        assert!(accounts_of(&"\u{1}".repeat(200_000)).unwrap_err().len() < 2_000);
        let labels = map([(TENANCY_LABEL, "enabled")]);
        let DesiredTenancy::Invalid { reason, .. } =
            DesiredTenancy::of(&labels, &map([(PIPELINES_ROLE_ANNOTATION, "X".repeat(200_000).as_str())]))
        else {
            panic!("it is not a name")
        };
        assert!(reason.len() < 2_000, "{reason}");
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
            ("istio-aux.io/tenancy", "true"),
            ("istio-aux.io/pipelines-token", "yes"),
            ("istio-aux.io/mesh", "enabled"),
            ("other", "x"),
        ]);
        assert_eq!(
            unknown_values(&labels),
            [
                "label istio-aux.io/tenancy: invalid value \"true\"; use enabled or disabled",
                "label istio-aux.io/pipelines-token: invalid value \"yes\"; use enabled or disabled",
                "label istio-aux.io/mesh: invalid value \"enabled\"; use run-to-completion or disabled",
            ]
        );
        assert!(unknown_values(&map([("istio-aux.io/mesh", "disabled")])).is_empty());
    }
}
