//! The operations of a JSON Patch for one pod. Missing parents are created; nothing else of the pod is touched.

use std::collections::HashSet;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, MoveOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

use crate::facts::pod::{Container, Pod};

/// Collects the operations for one pod.
pub(crate) struct PatchBuilder<'p> {
    pod: &'p Pod,
    operations: Vec<PatchOperation>,
    /// The parents that an operation has created.
    created: HashSet<PointerBuf>,
    /// The names of init containers and volumes that an operation has added.
    named: Vec<String>,
    /// The container that becomes the first.
    front: Option<usize>,
}

impl<'p> PatchBuilder<'p> {
    pub(crate) fn new(pod: &'p Pod) -> Self {
        Self { pod, operations: Vec::new(), created: HashSet::new(), named: Vec::new(), front: None }
    }

    pub(crate) fn finish(mut self) -> Patch {
        // Last, because it changes the indexes of containers.
        if let Some(index) = self.front.filter(|&index| index > 0) {
            let path = |index: usize| pointer(&["spec", "containers", &index.to_string()]);
            self.operations.push(PatchOperation::Move(MoveOperation { from: path(index), path: path(0) }));
        }
        Patch(self.operations)
    }

    pub(crate) fn annotation(&mut self, key: &str, value: &str) {
        if self.pod.annotation(key) != Some(value) {
            let exists = self.pod.metadata.as_ref().is_some_and(|metadata| metadata.annotations.is_some());
            self.set_metadata("annotations", exists, key, value);
        }
    }

    pub(crate) fn remove_annotation(&mut self, key: &str) {
        if self.pod.annotation(key).is_some() {
            let path = pointer(&["metadata", "annotations", key]);
            self.operations.push(PatchOperation::Remove(RemoveOperation { path }));
        }
    }

    pub(crate) fn label(&mut self, key: &str, value: &str) {
        if self.pod.label(key) != Some(value) {
            let exists = self.pod.metadata.as_ref().is_some_and(|metadata| metadata.labels.is_some());
            self.set_metadata("labels", exists, key, value);
        }
    }

    /// Adds a label, unless the pod has one of this key.
    pub(crate) fn default_label(&mut self, key: &str, value: &str) {
        if self.pod.label(key).is_none() {
            self.label(key, value);
        }
    }

    fn set_metadata(&mut self, field: &str, exists: bool, key: &str, value: &str) {
        self.ensure(&["metadata"], self.pod.metadata.is_some(), json!({}));
        self.ensure(&["metadata", field], exists, json!({}));
        self.add(&["metadata", field, key], value.into());
    }

    /// Appends to `initContainers`, unless one of this name is there.
    pub(super) fn init_container(&mut self, container: Value) {
        let init = &self.pod.spec.init_containers;
        if !init.iter().flatten().any(|other| container["name"] == other.name.as_str()) && self.is_new(&container) {
            self.append(&["spec", "initContainers"], init.is_some(), container);
        }
    }

    fn is_new(&mut self, object: &Value) -> bool {
        let name = object["name"].as_str().unwrap_or_default().to_owned();
        let is_new = !self.named.contains(&name);
        self.named.extend(is_new.then_some(name));
        is_new
    }

    /// Appends to `volumes`, unless one of this name is there.
    pub(crate) fn volume(&mut self, volume: Value) {
        let volumes = &self.pod.spec.volumes;
        if !volumes.iter().flatten().any(|other| volume["name"] == other.name.as_str()) && self.is_new(&volume) {
            self.append(&["spec", "volumes"], volumes.is_some(), volume);
        }
    }

    /// Appends to `imagePullSecrets`, unless it is there.
    pub(super) fn pull_secret(&mut self, name: &str) {
        let secrets = &self.pod.spec.image_pull_secrets;
        let secret = json!({"name": name});
        if !secrets.iter().flatten().any(|other| other.name == name) {
            self.append(&["spec", "imagePullSecrets"], secrets.is_some(), secret);
        }
    }

    /// Appends to a container's `volumeMounts`, unless one of the same volume is there.
    pub(crate) fn mount(&mut self, index: usize, mount: Value) {
        let mounts = &self.container(index).volume_mounts;
        if !mounts.iter().flatten().any(|other| mount["name"] == other.name.as_str()) {
            self.append(&["spec", "containers", &index.to_string(), "volumeMounts"], mounts.is_some(), mount);
        }
    }

    /// Appends to a container's `env`.
    pub(crate) fn env(&mut self, index: usize, variable: Value) {
        let exists = self.container(index).env.is_some();
        self.append(&["spec", "containers", &index.to_string(), "env"], exists, variable);
    }

    pub(super) fn command(&mut self, index: usize, words: &[String]) {
        self.add(&["spec", "containers", &index.to_string(), "command"], words.into());
    }

    pub(super) fn append_args(&mut self, index: usize, words: &[&str]) {
        let exists = self.container(index).args.is_some();
        for word in words {
            self.append(&["spec", "containers", &index.to_string(), "args"], exists, (*word).into());
        }
    }

    pub(super) fn hold_at_proxy(&mut self, index: usize) {
        let place = index.to_string();
        let lifecycle = ["spec", "containers", &place, "lifecycle"];
        self.ensure(&lifecycle, self.container(index).lifecycle.is_some(), json!({}));
        let hook = json!({"exec": {"command": ["pilot-agent", "wait"]}});
        self.add(&[&lifecycle[..], &["postStart"]].concat(), hook);
        self.move_to_front(index);
    }

    pub(super) fn share_process_namespace(&mut self) {
        if self.pod.spec.share_process_namespace != Some(true) {
            self.add(&["spec", "shareProcessNamespace"], true.into());
        }
    }

    /// Replaces a probe of a container in one of the two lists.
    pub(crate) fn probe(&mut self, list: &str, index: usize, field: &str, probe: Value) {
        self.add(&["spec", list, &index.to_string(), field], probe);
    }

    pub(crate) fn runtime_class(&mut self, name: &str) {
        self.add(&["spec", "runtimeClassName"], name.into());
    }

    pub(super) fn move_to_front(&mut self, index: usize) {
        self.front = Some(index);
    }

    fn container(&self, index: usize) -> &'p Container {
        &self.pod.spec.containers[index]
    }

    fn append(&mut self, list: &[&str], exists: bool, item: Value) {
        self.ensure(list, exists, json!([]));
        self.add(&[list, &["-"]].concat(), item);
    }

    /// Creates a parent, unless it exists in the pod or was created before.
    fn ensure(&mut self, path: &[&str], exists: bool, empty: Value) {
        if exists {
            return;
        }
        let pointer = pointer(path);
        if self.created.insert(pointer) {
            self.add(path, empty);
        }
    }

    fn add(&mut self, path: &[&str], value: Value) {
        self.operations.push(PatchOperation::Add(AddOperation { path: pointer(path), value }));
    }
}

fn pointer(tokens: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(tokens.iter().copied())
}
