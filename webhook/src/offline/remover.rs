//! Removes from a pod what the webhook adds. Pure.

use contract::args::{END_OF_OPTIONS, START_AFTER, SUPERVISE, WRAP};
use contract::names::{
    BINARY_VOLUME, HOLD_FIELD, INSTALL_CONTAINER, LOCK_VOLUME, MODE_ANNOTATION, NATIVE_SIDECAR_ANNOTATION,
    PROXY_CONFIG_ANNOTATION, SHIM_BINARY, SHIM_CONTAINER, SHIM_LABEL, SHIM_VOLUME, STATUS_ANNOTATION,
};
use serde_json::{Map, Value};

const OUR_CONTAINERS: [&str; 2] = [SHIM_CONTAINER, INSTALL_CONTAINER];
const OUR_VOLUMES: [&str; 3] = [SHIM_VOLUME, BINARY_VOLUME, LOCK_VOLUME];

/// Removes the shim, its marks and the startup hold.
pub(super) fn remove(pod: &mut Value) {
    edit_field(pod, "metadata", |metadata| {
        let annotations = edit_field(metadata, "annotations", remove_annotations);
        let labels = edit_field(metadata, "labels", |labels| remove_key(labels, SHIM_LABEL));
        annotations || labels
    });
    edit_field(pod, "spec", |spec| {
        if edit_field(spec, "initContainers", |list| remove_named(list, &OUR_CONTAINERS)) {
            // The webhook adds it with the shim; a user's own cannot be told from it.
            if spec["shareProcessNamespace"] == true {
                remove_key(spec, "shareProcessNamespace");
            }
        }
        edit_field(spec, "volumes", |list| remove_named(list, &OUR_VOLUMES));
        for container in spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten() {
            edit_field(container, "volumeMounts", |list| remove_named(list, &OUR_VOLUMES));
            edit_field(container, "command", unwrap_command);
        }
        false
    });
}

/// Edits a field, where it is there. Removes it where the edit has changed it and left nothing. Returns whether it changed.
fn edit_field(object: &mut Value, field: &str, edit: impl FnOnce(&mut Value) -> bool) -> bool {
    let Some(value) = object.get_mut(field) else { return false };
    if !edit(value) {
        return false;
    }
    let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
    if is_empty {
        remove_key(object, field);
    }
    true
}

fn remove_key(object: &mut Value, key: &str) -> bool {
    object.as_object_mut().is_some_and(|object| object.shift_remove(key).is_some())
}

fn remove_annotations(annotations: &mut Value) -> bool {
    let mut changed = remove_key(annotations, STATUS_ANNOTATION);
    if annotations[MODE_ANNOTATION] == "istio" {
        changed |= remove_key(annotations, NATIVE_SIDECAR_ANNOTATION);
    }
    let Some(config) = annotations.get_mut(PROXY_CONFIG_ANNOTATION) else { return changed };
    let Some(rest) = config.as_str().and_then(without_hold) else { return changed };
    if rest.trim().is_empty() {
        remove_key(annotations, PROXY_CONFIG_ANNOTATION);
    } else {
        *config = rest.into();
    }
    true
}

/// A proxy configuration without the startup hold, where it is written as the webhook writes it.
fn without_hold(config: &str) -> Option<String> {
    let flow = format!("{{\"{HOLD_FIELD}\": true");
    if let Some(rest) = config.strip_prefix(&flow) {
        return match rest.strip_prefix(", ") {
            Some(rest) => Some(format!("{{{rest}")),
            None => (rest == "}").then(String::new),
        };
    }
    let (before, last) = config.strip_suffix('\n')?.rsplit_once('\n')?;
    // The webhook does not keep the blanks at the end. A block of several lines has one line end.
    let end = if before.contains('\n') { "\n" } else { "" };
    (last.trim_start() == format!("{HOLD_FIELD}: true")).then(|| format!("{before}{end}"))
}

/// Removes the items of a list with these names. Returns whether there were any.
fn remove_named(list: &mut Value, names: &[&str]) -> bool {
    let Some(items) = list.as_array_mut() else { return false };
    let before = items.len();
    items.retain(|item| !names.iter().any(|name| item["name"] == *name));
    items.len() < before
}

/// Removes the shim in front of a container's command. Returns whether it was there.
fn unwrap_command(command: &mut Value) -> bool {
    let Some(words) = command.as_array_mut() else { return false };
    let is_shim = words.len() > 2
        && words[0] == SHIM_BINARY
        && [WRAP, SUPERVISE, START_AFTER].iter().any(|subcommand| words[1] == *subcommand);
    let end = words.iter().position(|word| word == END_OF_OPTIONS).filter(|_| is_shim);
    if let Some(end) = end {
        words.drain(..=end);
    }
    end.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_startup_hold_is_removed_where_it_is_written_as_ours() {
        let cases = [
            ("{\"holdApplicationUntilProxyStarts\": true}", Some("")),
            ("{\"holdApplicationUntilProxyStarts\": true, \"concurrency\": 2}", Some("{\"concurrency\": 2}")),
            ("concurrency: 2\nholdApplicationUntilProxyStarts: true\n", Some("concurrency: 2")),
            ("a: 1\nb: 2\nholdApplicationUntilProxyStarts: true\n", Some("a: 1\nb: 2\n")),
            ("  a: 1\n  holdApplicationUntilProxyStarts: true\n", Some("  a: 1")),
            ("holdApplicationUntilProxyStarts: true", None),
            ("holdApplicationUntilProxyStarts: false\n", None),
            ("{\"holdApplicationUntilProxyStarts\": false}", None),
            ("concurrency: 2", None),
        ];
        for (before, after) in cases {
            assert_eq!(without_hold(before).as_deref(), after, "{before:?}");
        }
    }

    #[test]
    fn the_shim_is_removed_from_commands_mounts_and_volumes() {
        let wrapped = ["/istio-aux/aux-shim", "wrap", "--lock-dir=/istio-aux-locks", "--", "sh", "-c", "true"];
        let mut pod = json!({
            "metadata": {"name": "x", "labels": {"istio-aux.io/shim": "wrap", "app": "a"}},
            "spec": {
                "initContainers": [{"name": "aux-shim-install"}, {"name": "prepare"}],
                "containers": [{"name": "main", "command": wrapped, "volumeMounts": [{"name": "istio-aux"}]}],
                "volumes": [{"name": "istio-aux"}, {"name": "istio-aux-locks"}],
                "shareProcessNamespace": false,
            },
        });
        remove(&mut pod);
        let expected = json!({
            "metadata": {"name": "x", "labels": {"app": "a"}},
            "spec": {
                "initContainers": [{"name": "prepare"}],
                "containers": [{"name": "main", "command": ["sh", "-c", "true"]}],
                "shareProcessNamespace": false,
            },
        });
        assert_eq!(pod, expected);
    }

    #[test]
    fn a_pod_without_ours_stays_as_it_is() {
        let pods = [
            json!({"metadata": {"name": "x"}, "spec": {"shareProcessNamespace": true, "containers": [{"name": "main"}]}}),
            json!({"spec": {"containers": [{"name": "main", "command": ["/istio-aux/aux-shim", "watch", "--"]}]}}),
            json!({"metadata": {"annotations": {}, "labels": {}}, "spec": {"volumes": [], "containers": []}}),
            json!({"metadata": 1, "spec": 3}),
            json!({"metadata": {"annotations": 2}, "spec": {"containers": {}}}),
        ];
        for pod in pods {
            let mut after = pod.clone();
            remove(&mut after);
            assert_eq!(after, pod);
        }
    }
}
