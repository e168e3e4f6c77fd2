//! Both decisions as tables. Each case changes the same pod by a JSON Merge Patch.

use json_patch::merge;
use serde_json::{Value, json};

use super::*;
use crate::pod::Pod;
use crate::{Decision, Settings, decided};

fn mesh(pod: &Pod) -> Decision {
    join_mesh(pod, &Settings::new("shim:1"))
}

/// Returns the mount of the service account's token, as the API server adds it before it calls webhooks.
fn account_token() -> Value {
    json!({"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true})
}

fn a_pod(change: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "step", "newer": {"a": 1}},
        "spec": {"restartPolicy": "Never", "newer": [1], "containers": [
            {"name": "main", "command": ["true"], "newer": {"b": [2]}, "volumeMounts": [account_token()]},
            {"name": "istio-proxy", "volumeMounts": [account_token()]},
            {"name": "collector", "env": [{"name": "A", "value": "b"}], "volumeMounts": [account_token()]},
        ]},
    });
    merge(&mut pod, change);
    pod
}

/// Returns the indexes of containers that mount the token and have the variable.
fn with_token(pod: &Value) -> Vec<usize> {
    let containers = pod["spec"]["containers"].as_array().unwrap().iter().enumerate();
    let has = |container: &Value, list: &str, field: &str, value: &str| {
        container[list].as_array().is_some_and(|items| items.iter().any(|item| item[field] == value))
    };
    containers
        .filter(|(_, container)| {
            has(container, "volumeMounts", "name", "istio-aux-pipelines-token")
                && has(container, "env", "name", "KF_PIPELINES_SA_TOKEN_PATH")
        })
        .map(|(index, _)| index)
        .collect()
}

#[test]
fn payload_of_jobs_and_notebooks_gets_the_token() {
    let with_mount = json!({"spec": {"containers": [
        {"name": "main", "volumeMounts": [account_token(), {"name": "mine", "mountPath": "/var/run/secrets/kubeflow/pipelines/"}]},
        {"name": "other", "volumeMounts": [account_token()], "env": [{"name": "KF_PIPELINES_SA_TOKEN_PATH", "value": "/mine"}]},
        {"name": "third", "volumeMounts": [account_token()]},
    ]}});
    let no_metadata = json!({"metadata": null, "spec": {"containers": [
        {"name": "main", "env": null, "volumeMounts": [account_token()]},
    ]}});
    let without_account_token = json!({"spec": {"containers": [{"name": "main", "volumeMounts": null}]}});
    let cases: [(&str, Value, &[usize]); 10] = [
        ("Never", json!({}), &[0, 2]),
        ("OnFailure", json!({"spec": {"restartPolicy": "OnFailure"}}), &[0, 2]),
        ("Always", json!({"spec": {"restartPolicy": "Always"}}), &[]),
        (
            "a notebook",
            json!({"spec": {"restartPolicy": "Always"}, "metadata": {"labels": {"notebook-name": "n"}}}),
            &[0, 2],
        ),
        ("a PodDefault adds it", json!({"metadata": {"labels": {"access-ml-pipeline": "true"}}}), &[]),
        ("the pod wants none", json!({"metadata": {"labels": {"access-ml-pipeline": "false"}}}), &[]),
        ("settings of its own", with_mount, &[2]),
        ("a volume of the name", json!({"spec": {"volumes": [{"name": "istio-aux-pipelines-token"}]}}), &[0, 2]),
        ("no metadata", no_metadata, &[0]),
        ("no token of the account", without_account_token, &[]),
    ];
    for (name, change, expected) in cases {
        let before = a_pod(&change);
        let (pod, decision) = decided(add_pipelines_token, before.clone());
        assert_eq!(with_token(&pod), expected, "{name}");
        assert_eq!(decision.patch.is_empty(), expected.is_empty(), "{name}: {}", decision.reason);
        if expected.is_empty() {
            assert_eq!(pod, before, "{name}");
        }
        let volumes = pod["spec"]["volumes"].as_array().map_or(0, Vec::len);
        assert_eq!(volumes, usize::from(!expected.is_empty()), "{name}");
    }
}

#[test]
fn token_has_kubeflows_audience_and_path() {
    let (pod, _) = decided(add_pipelines_token, a_pod(&json!({})));
    insta::assert_json_snapshot!(json!({
        "volumes": pod["spec"]["volumes"], "main": pod["spec"]["containers"][0],
    }), @r#"
    {
      "volumes": [
        {
          "name": "istio-aux-pipelines-token",
          "projected": {
            "sources": [
              {
                "serviceAccountToken": {
                  "path": "token",
                  "expirationSeconds": 7200,
                  "audience": "pipelines.kubeflow.org"
                }
              }
            ]
          }
        }
      ],
      "main": {
        "name": "main",
        "command": [
          "true"
        ],
        "newer": {
          "b": [
            2
          ]
        },
        "volumeMounts": [
          {
            "name": "kube-api-access-x",
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            "readOnly": true
          },
          {
            "name": "istio-aux-pipelines-token",
            "mountPath": "/var/run/secrets/kubeflow/pipelines",
            "readOnly": true
          }
        ],
        "env": [
          {
            "name": "KF_PIPELINES_SA_TOKEN_PATH",
            "value": "/var/run/secrets/kubeflow/pipelines/token"
          }
        ]
      }
    }
    "#);
}

#[test]
fn pod_joins_the_mesh_where_its_proxy_can_be_ended() {
    let labels = |value: &str| json!({"metadata": {"labels": {"sidecar.istio.io/inject": value}}});
    let annotated = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let cases = [
        ("Never", json!({}), Some("true"), ""),
        ("OnFailure", json!({"spec": {"restartPolicy": "OnFailure"}}), Some("true"), ""),
        ("no metadata", json!({"metadata": null}), Some("true"), ""),
        ("the annotation says no", annotated("sidecar.istio.io/inject", "false"), Some("true"), ""),
        ("Always", json!({"spec": {"restartPolicy": "Always"}}), None, ""),
        ("the label says no", labels("false"), Some("false"), ""),
        ("the label says yes", labels("true"), Some("true"), ""),
        (
            "opted out",
            json!({"metadata": {"labels": {"istio-aux.io/injection": "disabled"}}}),
            None,
            "the pod opted out",
        ),
        ("mode off", annotated("istio-aux.io/mode", "off"), None, "the pod opted out"),
        ("mode hold", annotated("istio-aux.io/mode", "hold"), None, "the pod asks for it"),
        ("no status port", annotated("status.sidecar.istio.io/port", "ninety"), None, "status port cannot be read"),
        ("a gateway", annotated("inject.istio.io/templates", "gateway"), None, "gateway"),
        ("the node's PIDs", json!({"spec": {"hostPID": true}}), Some("true"), ""),
        ("the node's network", json!({"spec": {"hostNetwork": true}}), None, "hostNetwork"),
        ("no shared PIDs", json!({"spec": {"shareProcessNamespace": false}}), Some("true"), ""),
    ];
    for (name, change, label, warning) in cases {
        let before = a_pod(&change);
        let (mut pod, decision) = decided(mesh, before.clone());
        assert_eq!(pod["metadata"]["labels"]["sidecar.istio.io/inject"].as_str(), label, "{name}: {}", decision.reason);
        let warnings = decision.warnings.concat();
        assert_eq!(warnings.is_empty(), warning.is_empty(), "{name}: {warnings}");
        assert!(warnings.contains(warning), "{name}: {warnings}");
        // Nothing but the label differs.
        merge(&mut pod, &json!({"metadata": {"labels": {"sidecar.istio.io/inject": null}}}));
        let mut before = before;
        merge(&mut before, &json!({"metadata": {"labels": {"sidecar.istio.io/inject": null}}}));
        assert_eq!(pod, before, "{name}");
    }
}
