//! Writing a JSON Patch against the raw document: parents are made where they are missing, nothing else is touched.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, MoveOperation, Patch, PatchOperation};
use serde_json::{Value, json};

use super::pod::Pod;

const METADATA: &[&str] = &["metadata"];
const LABELS: &[&str] = &["metadata", "labels"];
const ANNOTATIONS: &[&str] = &["metadata", "annotations"];
const INIT_CONTAINERS: &[&str] = &["spec", "initContainers"];
const VOLUMES: &[&str] = &["spec", "volumes"];

/// Collects the operations for one pod.
pub(super) struct PatchWriter<'p> {
    pod: &'p Pod<'p>,
    /// The parents that the document has, or that an operation has made.
    present: Vec<PointerBuf>,
    operations: Vec<PatchOperation>,
    /// The container that is to come first.
    first: Option<usize>,
}

impl<'p> PatchWriter<'p> {
    pub(super) fn new(pod: &'p Pod<'p>) -> Self {
        let metadata = pod.metadata.as_ref();
        let parents = [
            (METADATA, metadata.is_some()),
            (LABELS, metadata.is_some_and(|metadata| metadata.labels.is_some())),
            (ANNOTATIONS, metadata.is_some_and(|metadata| metadata.annotations.is_some())),
            (INIT_CONTAINERS, pod.spec.init_containers.is_some()),
            (VOLUMES, pod.spec.volumes.is_some()),
        ];
        let present =
            parents.into_iter().filter(|(_, is_there)| *is_there).map(|(parent, _)| pointer(parent)).collect();
        Self { pod, present, operations: Vec::new(), first: None }
    }

    /// Sets an annotation, unless it has this value.
    pub(super) fn annotation(&mut self, key: &str, value: &str) {
        if self.pod.annotation(key) != Some(value) {
            self.metadata(ANNOTATIONS, key, value);
        }
    }

    /// Sets a label, unless it has this value.
    pub(super) fn label(&mut self, key: &str, value: &str) {
        if self.pod.label(key) != Some(value) {
            self.metadata(LABELS, key, value);
        }
    }

    /// Appends to `initContainers`, unless one of this name is there.
    pub(super) fn init_container(&mut self, container: Value) {
        let is_there =
            self.pod.spec.init_containers.iter().flatten().any(|other| container["name"] == other.name.as_str());
        if !is_there {
            self.append(pointer(INIT_CONTAINERS), container);
        }
    }

    /// Appends to `volumes`, unless one of this name is there.
    pub(super) fn volume(&mut self, volume: Value) {
        let is_there = self.pod.spec.volumes.iter().flatten().any(|other| volume["name"] == other.name.as_str());
        if !is_there {
            self.append(pointer(VOLUMES), volume);
        }
    }

    /// Sets a container's command.
    pub(super) fn command(&mut self, container: usize, words: &[String]) {
        self.add(container_field(container, "command"), json!(words));
    }

    /// Appends to a container's `args`.
    pub(super) fn args(&mut self, container: usize, words: &[&str]) {
        let list = container_field(container, "args");
        if self.pod.spec.containers[container].args.is_some() {
            self.present.push(list.clone());
        }
        for word in words {
            self.append(list.clone(), json!(word));
        }
    }

    /// Sets what is run when a container has started.
    pub(super) fn post_start(&mut self, container: usize, command: &[&str]) {
        let lifecycle = container_field(container, "lifecycle");
        if self.pod.spec.containers[container].lifecycle.is_some() {
            self.present.push(lifecycle.clone());
        }
        self.make(lifecycle.clone(), json!({}));
        let mut hook = lifecycle;
        hook.push_back("postStart");
        self.add(hook, json!({"exec": {"command": command}}));
    }

    /// Appends to a container's `volumeMounts`, unless there is one of the same volume.
    pub(super) fn mount(&mut self, container: usize, mount: Value) {
        let mounts = &self.pod.spec.containers[container].volume_mounts;
        if mounts.iter().flatten().any(|other| mount["name"] == other.name.as_str()) {
            return;
        }
        let list = container_field(container, "volumeMounts");
        if mounts.is_some() {
            self.present.push(list.clone());
        }
        self.append(list, mount);
    }

    /// Moves a container to the front of `containers`, once. Whatever is written to containers comes before this: it is
    /// the last operation.
    pub(super) fn first(&mut self, container: usize) {
        self.first = (container > 0).then_some(container);
    }

    /// The patch.
    pub(super) fn finish(mut self) -> Patch {
        if let Some(container) = self.first {
            let place = |index: usize| PointerBuf::from_tokens(["spec", "containers", &index.to_string()]);
            let operation = MoveOperation { from: place(container), path: place(0) };
            self.operations.push(PatchOperation::Move(operation));
        }
        Patch(self.operations)
    }

    /// Lets the pod's containers see each other's processes.
    pub(super) fn share_process_namespace(&mut self) {
        if self.pod.spec.share_process_namespace != Some(true) {
            self.add(pointer(&["spec", "shareProcessNamespace"]), json!(true));
        }
    }

    fn metadata(&mut self, parent: &[&str], key: &str, value: &str) {
        self.make(pointer(METADATA), json!({}));
        self.make(pointer(parent), json!({}));
        let mut path = pointer(parent);
        path.push_back(key);
        self.add(path, json!(value));
    }

    fn append(&mut self, list: PointerBuf, item: Value) {
        self.make(list.clone(), json!([]));
        let mut end = list;
        end.push_back("-");
        self.add(end, item);
    }

    fn make(&mut self, parent: PointerBuf, empty: Value) {
        if !self.present.contains(&parent) {
            self.present.push(parent.clone());
            self.add(parent, empty);
        }
    }

    fn add(&mut self, path: PointerBuf, value: Value) {
        self.operations.push(PatchOperation::Add(AddOperation { path, value }));
    }
}

fn pointer(tokens: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(tokens.iter().copied())
}

fn container_field(container: usize, field: &str) -> PointerBuf {
    PointerBuf::from_tokens(["spec", "containers", &container.to_string(), field])
}
