//! Requests and limits of the shim's containers: small, and such that the pod keeps its quality of service class.

use std::collections::BTreeMap;

use contract::names::{SHIM_LIMITS_ANNOTATION, SHIM_REQUESTS_ANNOTATION};
use contract::quantity;
use serde::Serialize;

use super::Warnings;
use crate::ShimResources;
use crate::facts::Facts;
use crate::facts::pod::{Pod, Resources};

/// The CPU limit where every other container has one: with a few millicores the shim would be throttled.
const CPU_LIMIT: &str = "100m";
/// The memory limit in Guaranteed pods, where neither a limit nor a request is set.
const GUARANTEED_MEMORY_LIMIT: &str = "16Mi";

/// `resources` of a container.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ResourceRequirements {
    requests: BTreeMap<String, String>,
    limits: BTreeMap<String, String>,
}

/// Returns the `resources` of the shim's containers in this pod: the installation's, overridden by the pod's annotations.
pub(super) fn for_shim(
    facts: &Facts,
    defaults: &ShimResources,
    warnings: &mut Warnings,
) -> Option<ResourceRequirements> {
    if facts.pod.spec.resources.is_some() {
        // The pod's own resources (KEP-2837) bound the sum of its containers', which the shim could exceed.
        return None;
    }
    let mut quantities = |defaults: &[(String, String)], annotation: &str| {
        let mut quantities: BTreeMap<_, _> = defaults.iter().cloned().collect();
        let overrides = facts.pod.annotation(annotation).unwrap_or_default();
        for text in overrides.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            match ShimResources::parse_quantity(text) {
                Ok((name, quantity)) => {
                    quantities.insert(name, quantity);
                }
                Err(error) => warnings.push(format_args!("{annotation}: {text:?} is ignored: it {error}")),
            }
        }
        quantities
    };
    let requests = quantities(&defaults.requests, SHIM_REQUESTS_ANNOTATION);
    let mut limits = quantities(&defaults.limits, SHIM_LIMITS_ANNOTATION);
    let mut limit = |name: &str, quantity: &str| {
        limits.entry(name.to_owned()).or_insert_with(|| quantity.to_owned());
    };
    if has_cpu_limits(facts.pod) {
        // A quota of CPU limits rejects pods with a container that has none.
        limit("cpu", CPU_LIMIT);
    }
    let is_guaranteed = is_guaranteed(facts.pod);
    if is_guaranteed {
        // Each container of a Guaranteed pod has limits, and requests that equal them.
        limit("memory", requests.get("memory").map_or(GUARANTEED_MEMORY_LIMIT, String::as_str));
    }
    // The API server rejects a request that is larger than its limit.
    for (name, request) in &requests {
        if let Some(limit) = limits.get_mut(name)
            && quantity::parse(request) > quantity::parse(limit)
        {
            limit.clone_from(request);
        }
    }
    let requests = if is_guaranteed { limits.clone() } else { requests };
    Some(ResourceRequirements { requests, limits })
}

/// Returns true if every container has a limit for CPU.
fn has_cpu_limits(pod: &Pod) -> bool {
    let has_limit = |resources: &Resources| resources.limit("cpu").is_some();
    pod.all_containers().all(|container| container.resources.as_ref().is_some_and(has_limit))
}

/// Returns true if every container has limits for CPU and memory, and requests that equal them or are absent.
fn is_guaranteed(pod: &Pod) -> bool {
    pod.all_containers().all(|container| container.resources.as_ref().is_some_and(is_fixed))
}

fn is_fixed(resources: &Resources) -> bool {
    ["cpu", "memory"].into_iter().all(|name| {
        let limit = resources.limit(name).and_then(|limit| quantity::parse(&limit));
        limit.is_some() && resources.request(name).is_none_or(|request| quantity::parse(&request) == limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shim_in(spec: &Value) -> Option<Value> {
        in_pod(&ShimResources::default(), &json!({"spec": spec})).0
    }

    fn in_pod(asked: &ShimResources, pod: &Value) -> (Option<Value>, Vec<String>) {
        let (text, mut warnings) = (pod.to_string(), Warnings::default());
        let resources = for_shim(&Facts::of(&serde_json::from_str(&text).unwrap()), asked, &mut warnings);
        (resources.map(|resources| json!(resources)), warnings.into_vec())
    }

    #[test]
    fn annotations_override_default_quantities() {
        let annotated = |requests: &str, limits: &str| {
            let annotations = json!({"istio-aux.io/shim-requests": requests, "istio-aux.io/shim-limits": limits});
            let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main"}]}});
            in_pod(&ShimResources::default(), &pod)
        };
        let (resources, warnings) = annotated("memory=32Mi", "memory=32Mi, cpu=50m");
        let expected = json!({"requests": {"cpu": "1m", "memory": "32Mi"}, "limits": {"memory": "32Mi", "cpu": "50m"}});
        assert_eq!((resources, warnings), (Some(expected), vec![]));
        let (resources, _) = annotated("memory=32Mi", "");
        let expected = json!({"requests": {"cpu": "1m", "memory": "32Mi"}, "limits": {"memory": "32Mi"}});
        assert_eq!(resources, Some(expected), "no request is larger than its limit");
        let (resources, warnings) = annotated("memory=lots,cpu=2m", "");
        let expected = json!({"requests": {"memory": "4Mi", "cpu": "2m"}, "limits": {"memory": "16Mi"}});
        assert_eq!(resources, Some(expected));
        let warning = "istio-aux.io/shim-requests: \"memory=lots\" is ignored: it takes cpu=QUANTITY and memory=QUANTITY, such as memory=4Mi";
        assert_eq!(warnings, [warning]);
    }

    #[test]
    fn quality_of_service_is_kept() {
        let fixed = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        let same_amount =
            json!({"requests": {"cpu": "1000m", "memory": "1073741824"}, "limits": {"cpu": 1, "memory": "1Gi"}});
        let limits_only = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let burstable = json!({"requests": {"cpu": "10m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        let cases = [
            (json!([&fixed]), json!([]), true),
            (json!([&fixed, &limits_only]), json!([&fixed]), true),
            (json!([&fixed, &same_amount]), json!([]), true),
            (json!([&fixed, &burstable]), json!([]), false),
            (json!([&fixed]), json!([&burstable]), false),
            (json!([&fixed, null]), json!([]), false),
            (json!([{"limits": {"memory": "1Gi"}}]), json!([]), false),
        ];
        for (containers, init, is_guaranteed) in cases {
            let named = |list: &Value| -> Value {
                list.as_array().unwrap().iter().map(|resources| json!({"name": "c", "resources": resources})).collect()
            };
            let resources =
                shim_in(&json!({"containers": named(&containers), "initContainers": named(&init)})).unwrap();
            assert_eq!(resources["requests"] == resources["limits"], is_guaranteed, "{containers} {init}");
        }
    }

    #[test]
    fn shim_has_a_cpu_limit_where_all_others_have() {
        let limited = json!({"name": "c", "resources": {"requests": {"cpu": "10m"}, "limits": {"cpu": "1"}}});
        let limit = |containers: Value| shim_in(&json!({"containers": containers})).unwrap()["limits"]["cpu"].clone();
        assert_eq!(limit(json!([limited, limited])), "100m");
        assert_eq!(limit(json!([limited, {"name": "c"}])), Value::Null);
    }

    #[test]
    fn operator_quantities_are_requested() {
        let asked = ShimResources {
            requests: ["4Mi", "8Mi"].map(|quantity| ("memory".to_owned(), quantity.to_owned())).to_vec(),
            limits: vec![("cpu".to_owned(), "50m".to_owned())],
        };
        let asking = |container: Value| in_pod(&asked, &json!({"spec": {"containers": [container]}})).0;
        let resources = asking(json!({"name": "main"}));
        assert_eq!(resources, Some(json!({"requests": {"memory": "8Mi"}, "limits": {"cpu": "50m"}})));
        let fixed = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let resources = asking(json!({"name": "main", "resources": fixed}));
        let both = json!({"cpu": "50m", "memory": "8Mi"});
        assert_eq!(resources, Some(json!({"requests": both, "limits": both})), "a Guaranteed pod");
    }

    #[test]
    fn pod_level_resources_leave_the_shim_without() {
        let spec = json!({"containers": [{"name": "main"}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}});
        assert_eq!(shim_in(&spec), None);
    }
}
