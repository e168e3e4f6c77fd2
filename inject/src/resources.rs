//! What the shim's containers ask of the node: next to nothing, and never so that the pod's quality of service changes.

use serde::{Serialize, Serializer};

use super::ShimResources;
use super::pod::{Pod, Resources};

/// The CPU limit of a shim that must have one: some milliseconds in 100 would throttle it.
const CPU_LIMIT: &str = "100m";
/// The memory limit of one that must have one, where nobody says what it asks for.
const MEMORY_LIMIT: &str = "16Mi";

/// The `resources` of a container of ours.
#[derive(Debug, Serialize)]
pub(super) struct ShimQuantities<'a> {
    #[serde(serialize_with = "as_map")]
    requests: Vec<(&'a str, &'a str)>,
    #[serde(serialize_with = "as_map")]
    limits: Vec<(&'a str, &'a str)>,
}

/// What a container of ours asks for in this pod.
pub(super) fn for_shim<'a>(pod: &Pod, asked: &'a ShimResources) -> Option<ShimQuantities<'a>> {
    if pod.spec.resources.is_some() {
        // The pod's own resources (KEP-2837) cap the sum of its containers': ours must not be what exceeds them.
        return None;
    }
    let [requests, mut limits] = [&asked.requests, &asked.limits].map(|pairs| quantities(pairs));
    if !is_guaranteed(pod) {
        return Some(ShimQuantities { requests, limits });
    }
    // It must say limits, and the same as requests.
    let memory = of(&requests, "memory").unwrap_or(MEMORY_LIMIT);
    for (name, limit) in [("cpu", CPU_LIMIT), ("memory", memory)] {
        if of(&limits, name).is_none() {
            limits.push((name, limit));
        }
    }
    Some(ShimQuantities { requests: limits.clone(), limits })
}

/// As the operator says them; of a resource that is named twice the last counts.
fn quantities(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    let is_last = |place: usize| pairs[place + 1..].iter().all(|(later, _)| *later != pairs[place].0);
    let said = pairs.iter().enumerate().filter(|(place, _)| is_last(*place));
    said.map(|(_, (name, quantity))| (name.as_str(), quantity.as_str())).collect()
}

fn of<'a>(quantities: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    quantities.iter().find(|(each, _)| *each == name).map(|(_, quantity)| *quantity)
}

fn as_map<S: Serializer>(quantities: &[(&str, &str)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(quantities.iter().copied())
}

/// Whether every container has limits for CPU and memory, and requests that are the same or absent.
fn is_guaranteed(pod: &Pod) -> bool {
    let init = pod.spec.init_containers.iter().flatten();
    pod.spec.containers.iter().chain(init).all(|container| container.resources.as_ref().is_some_and(is_fixed))
}

fn is_fixed(resources: &Resources) -> bool {
    ["cpu", "memory"].into_iter().all(|name| {
        let limit = resources.limit(name);
        limit.is_some() && resources.request(name).is_none_or(|request| Some(request) == limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shim_in(spec: &Value) -> Option<Value> {
        asking(&ShimResources::default(), spec)
    }

    fn asking(asked: &ShimResources, spec: &Value) -> Option<Value> {
        let text = json!({"spec": spec}).to_string();
        for_shim(&serde_json::from_str(&text).unwrap(), asked).map(|resources| json!(resources))
    }

    #[test]
    fn the_quality_of_service_stays() {
        let fixed = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        let limits_only = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let burstable = json!({"requests": {"cpu": "10m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        let cases = [
            (json!([&fixed]), json!([]), true),
            (json!([&fixed, &limits_only]), json!([&fixed]), true),
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
    fn what_the_operator_says_is_asked_for() {
        let asked = ShimResources {
            requests: ["4Mi", "8Mi"].map(|quantity| ("memory".to_owned(), quantity.to_owned())).to_vec(),
            limits: vec![("cpu".to_owned(), "50m".to_owned())],
        };
        let resources = asking(&asked, &json!({"containers": [{"name": "main"}]}));
        assert_eq!(resources, Some(json!({"requests": {"memory": "8Mi"}, "limits": {"cpu": "50m"}})));
    }

    #[test]
    fn a_pod_with_resources_of_its_own_gets_no_more_requests() {
        let spec = json!({"containers": [{"name": "main"}], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}});
        assert_eq!(shim_in(&spec), None);
    }
}
