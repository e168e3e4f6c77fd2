//! kubectl on the cluster that the tests may use.

use serde_json::{Value, json};

use crate::command::{printed, run};
use crate::namespace::slowness;

/// Runs kubectl, and returns what it printed.
#[track_caller]
pub fn kubectl(words: &[&str]) -> String {
    printed(&run("kubectl", words, ""))
}

/// Creates objects, or makes them like these.
#[track_caller]
pub fn apply(objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    // The API server validates by itself; kubectl would first fetch the schemas of all kinds.
    let words = ["apply", "--server-side", "--force-conflicts", "--validate=false", "--filename=-"];
    printed(&run("kubectl", &words, &list));
}

/// Waits until a Deployment, `deployment/NAME`, or a `DaemonSet` runs as it is specified now.
#[track_caller]
pub fn wait_for_rollout(namespace: &str, workload: &str) {
    let timeout = format!("--timeout={}s", 150 * slowness());
    kubectl(&["-n", namespace, "rollout", "status", workload, &timeout]);
}

/// Waits until a namespace is gone.
#[track_caller]
pub fn wait_for_removal(namespace: &str) {
    let timeout = format!("--timeout={}m", 4 * slowness());
    kubectl(&["wait", "--for=delete", &format!("namespace/{namespace}"), &timeout]);
}

/// Objects that are not of a namespace, and are deleted when this is dropped.
#[derive(Debug)]
pub struct Applied(String);

impl Applied {
    /// Creates the objects.
    #[must_use]
    pub fn new(objects: &[Value]) -> Self {
        apply(objects);
        Self(json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        let deleted = run("kubectl", &["delete", "--ignore-not-found", "--filename=-"], &self.0);
        if !deleted.status.success() {
            eprintln!("objects are left: {}", String::from_utf8_lossy(&deleted.stderr));
        }
    }
}
