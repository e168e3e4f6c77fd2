//! Which containers the proxy has to outlive: all but the proxy, or those that the pod names.

use contract::names::{PROXY_CONTAINER, WAIT_FOR_ANNOTATION};

use super::pod::Pod;

/// The regular containers but the proxy, split.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// To wait for.
    pub(super) names: Vec<String>,
    /// Not to wait for.
    pub(super) others: Vec<String>,
    /// What of the annotation could not be followed.
    pub(super) warnings: Vec<String>,
}

/// Splits a pod's containers by its `wait-for`. Names that do not exist are warned of; with none left, all are awaited.
pub(super) fn split(pod: &Pod) -> Awaited {
    let payload = pod.spec.containers.iter().map(|container| container.name.as_str()).filter(|&n| n != PROXY_CONTAINER);
    let all: Vec<&str> = payload.collect();
    let wait_for = pod.annotation(WAIT_FOR_ANNOTATION).unwrap_or_default();
    let asked = names_in(&wait_for);
    let unknown: Vec<&str> = asked.iter().copied().filter(|name| !all.contains(name)).collect();
    let mut warnings = Vec::new();
    if !unknown.is_empty() {
        warnings.push(format!(
            "{WAIT_FOR_ANNOTATION} names no container of this pod: {}; it has {}",
            unknown.join(", "),
            all.join(", ")
        ));
    }
    let waits_for_all = unknown.len() == asked.len();
    let (names, others) = all.iter().partition::<Vec<&str>, _>(|name| waits_for_all || asked.contains(name));
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    Awaited { names: owned(names), others: owned(others), warnings }
}

fn names_in(list: &str) -> Vec<&str> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn split_by(wait_for: Option<&str>) -> Awaited {
        let pod = json!({
            "metadata": {"annotations": wait_for.map(|names| json!({WAIT_FOR_ANNOTATION: names}))},
            "spec": {"containers": [{"name": "main"}, {"name": "istio-proxy"}, {"name": "metrics"}, {"name": "sql"}]},
        })
        .to_string();
        split(&serde_json::from_str(&pod).unwrap())
    }

    #[test]
    fn the_annotation_splits_the_containers() {
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
            let split = split_by(wait_for);
            assert_eq!(
                (split.names, split.others, split.warnings),
                (
                    names.into_iter().map(str::to_owned).collect(),
                    others.into_iter().map(str::to_owned).collect(),
                    warnings
                ),
                "{case}"
            );
        }
    }
}
