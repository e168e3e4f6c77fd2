//! The containers that the proxy must outlive: all but the proxy, or those that the pod names.

use std::collections::HashSet;

use contract::names::WAIT_FOR_ANNOTATION;

use super::warnings::{Names, Warnings};
use crate::facts::Facts;

/// The regular containers but the proxy, split.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContainerSplit {
    /// The shim waits for these.
    pub(super) awaited: Vec<String>,
    /// The shim does not wait for these.
    pub(super) helpers: Vec<String>,
}

/// Splits a pod's containers by its annotation. Unknown names cause a warning; where no name is left, all
/// containers are awaited.
pub(super) fn split(facts: &Facts, warnings: &mut Warnings) -> ContainerSplit {
    let all = facts.payload_names();
    let annotation = facts.pod.annotation(WAIT_FOR_ANNOTATION).unwrap_or_default();
    let list = annotation.split(',').map(str::trim).filter(|name| !name.is_empty());
    let (known, unknown): (Vec<&str>, Vec<&str>) = list.partition(|name| all.contains(name));
    let known: HashSet<&str> = known.into_iter().collect();
    let payload: Vec<&str> = facts.payload.iter().map(|container| container.name.as_str()).collect();
    if !unknown.is_empty() {
        warnings.push(format_args!(
            "{WAIT_FOR_ANNOTATION} names no container of this pod: {}; it has {}",
            Names(&unknown),
            Names(&payload)
        ));
    }
    let (awaited, helpers) =
        payload.into_iter().partition::<Vec<_>, _>(|name| known.is_empty() || known.contains(name));
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    ContainerSplit { awaited: owned(awaited), helpers: owned(helpers) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn split_by(wait_for: Option<&str>) -> (Vec<String>, Vec<String>, Vec<String>) {
        let pod = json!({
            "metadata": {"annotations": wait_for.map(|names| json!({WAIT_FOR_ANNOTATION: names}))},
            "spec": {"containers": [{"name": "main"}, {"name": "istio-proxy"}, {"name": "metrics"}, {"name": "sql"}]},
        })
        .to_string();
        let (pod, mut warnings) = (serde_json::from_str(&pod).unwrap(), Warnings::default());
        let ContainerSplit { awaited, helpers } = split(&Facts::of(&pod), &mut warnings);
        (awaited, helpers, warnings.into_vec())
    }

    #[test]
    fn annotation_splits_the_containers() {
        let unknown = |names: &str| {
            vec![format!("{WAIT_FOR_ANNOTATION} names no container of this pod: {names}; it has main, metrics, sql")]
        };
        let all = vec!["main", "metrics", "sql"];
        let cases = [
            ("no annotation: all", None, all.clone(), vec![], vec![]),
            ("empty: all", Some(" , "), all.clone(), vec![], vec![]),
            ("one", Some("main"), vec!["main"], vec!["metrics", "sql"], vec![]),
            ("two, with blanks", Some(" metrics , main "), vec!["main", "metrics"], vec!["sql"], vec![]),
            ("one exists", Some("main,mian"), vec!["main"], vec!["metrics", "sql"], unknown("mian")),
            ("none exists: all", Some("mian,x"), all.clone(), vec![], unknown("mian, x")),
            ("the proxy is never awaited", Some("istio-proxy"), all, vec![], unknown("istio-proxy")),
        ];
        for (case, wait_for, names, others, warnings) in cases {
            let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
            assert_eq!(split_by(wait_for), (owned(names), owned(others), warnings), "{case}");
        }
    }
}
