//! The charts' READMEs are written from the comments of their `values.yaml`, and compared with them.

use std::fs;

use serde_json::Value;

const CHARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm");

/// The charts, the least number of their values, and what their READMEs begin with.
const INTRODUCTIONS: [(&str, usize, &str); 2] = [("istio-aux", 70, WEBHOOK), ("istio-aux-node", 25, NODE)];

const WEBHOOK: &str = "# istio-aux

Lets pods with an Istio sidecar start after their proxy, and complete.

```
helm install istio-aux deploy/helm/istio-aux --namespace istio-aux --create-namespace --wait \\
  --set image.registry=registry.example/istio-aux
helm test istio-aux --namespace istio-aux
```

[docs/install.md](../../../docs/install.md) has the other ways of installing, upgrades and removal,
and [docs/clusters.md](../../../docs/clusters.md) private clusters and OpenShift. Nothing but
`image.registry` has to be set.
";

const NODE: &str = "# istio-aux-node

Runs the node agent, which starts pods' proxies [beside them](../../../docs/node.md).

[docs/node-operations.md](../../../docs/node-operations.md) says what containerd and istiod need
before it, and how the proxies are upgraded and removed. `proxyImage` and `image.registry` have to
be set.
";

const VALUES: &str = "
## Values

The comments of `values.yaml`, written by `UPDATE_DOCS=1 cargo test -p e2e --test local`.

| value | default | what |
| --- | --- | --- |
";

/// A value that can be set.
struct Setting {
    /// Its name, with dots.
    name: String,
    default: String,
    /// The comment above it.
    comment: String,
}

fn settings(chart: &str) -> Vec<Setting> {
    let values = fs::read_to_string(format!("{CHARTS}/{chart}/values.yaml")).expect("the chart has values");
    let (mut settings, mut comment, mut parents) = (Vec::new(), Vec::new(), Vec::<(usize, &str)>::new());
    for line in values.lines() {
        let text = line.trim_start();
        if let Some(words) = text.strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        if let Some((key, value)) = text.split_once(':') {
            let indentation = line.len() - text.len();
            parents.retain(|(parent, _)| *parent < indentation);
            parents.push((indentation, key));
            let name = parents.iter().map(|(_, key)| *key).collect::<Vec<_>>().join(".");
            if !value.is_empty() {
                settings.push(Setting { name, default: value.trim().to_owned(), comment: comment.join(" ") });
            }
        }
        comment.clear();
    }
    settings
}

/// Returns the part of the schema that is about a value. Its references are of the kind `#/definitions/NAME`.
fn schema_of<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    let resolve = |part: &'s Value| match part["$ref"].as_str() {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')),
        None => Some(part),
    };
    name.split('.').try_fold(schema, |part, key| resolve(part.get("properties")?.get(key)?))
}

#[test]
fn readme_has_each_value_default_and_comment() {
    let row = |setting: &Setting| format!("| `{}` | `{}` | {} |\n", setting.name, setting.default, setting.comment);
    for (chart, _, introduction) in INTRODUCTIONS {
        let text = introduction.to_owned() + VALUES + &settings(chart).iter().map(row).collect::<String>();
        let file = format!("{CHARTS}/{chart}/README.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&file, &text).expect("the README is written");
        }
        let written = fs::read_to_string(file).unwrap_or_default();
        assert_eq!(written, text, "next: UPDATE_DOCS=1 cargo test -p e2e --test local");
    }
}

#[test]
fn each_value_has_a_comment_and_a_schema() {
    for (chart, least, _) in INTRODUCTIONS {
        let schema =
            fs::read_to_string(format!("{CHARTS}/{chart}/values.schema.json")).expect("the chart has a schema");
        let schema: Value = serde_json::from_str(&schema).expect("the schema is JSON");
        let settings = settings(chart);
        assert!(settings.len() >= least, "{chart}: {} values are read", settings.len());
        for Setting { name, comment, .. } in &settings {
            assert!(
                comment.ends_with('.') || comment.ends_with(')'),
                "{chart}: {name} has no comment of whole sentences: {comment:?}"
            );
            assert!(schema_of(&schema, name).is_some(), "{chart}: {name} is not in the schema");
        }
    }
}
