//! Writing a JSON Patch against the raw document: parents are made where they are missing, nothing else is touched.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use serde_json::{Value, json};

use super::pod::Pod;

/// A path below the document's root.
type Parent = &'static [&'static str];
const METADATA: Parent = &["metadata"];
const LABELS: Parent = &["metadata", "labels"];
const ANNOTATIONS: Parent = &["metadata", "annotations"];
const INIT_CONTAINERS: Parent = &["spec", "initContainers"];
const VOLUMES: Parent = &["spec", "volumes"];

/// Collects the operations for one pod.
pub(super) struct PatchWriter<'p> {
    pod: &'p Pod<'p>,
    /// The parents that the document has, or that an operation has made.
    present: Vec<Parent>,
    operations: Vec<PatchOperation>,
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
        let present = parents.into_iter().filter(|(_, is_there)| *is_there).map(|(parent, _)| parent).collect();
        Self { pod, present, operations: Vec::new() }
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

    /// Appends to `initContainers`.
    pub(super) fn init_container(&mut self, container: Value) {
        self.make(INIT_CONTAINERS, json!([]));
        self.add(INIT_CONTAINERS, Some("-"), container);
    }

    /// Appends to `volumes`.
    pub(super) fn volume(&mut self, volume: Value) {
        self.make(VOLUMES, json!([]));
        self.add(VOLUMES, Some("-"), volume);
    }

    /// Lets the pod's containers see each other's processes.
    pub(super) fn share_process_namespace(&mut self) {
        if self.pod.spec.share_process_namespace != Some(true) {
            self.add(&["spec", "shareProcessNamespace"], None, json!(true));
        }
    }

    pub(super) fn finish(self) -> Patch {
        Patch(self.operations)
    }

    fn metadata(&mut self, parent: Parent, key: &str, value: &str) {
        self.make(METADATA, json!({}));
        self.make(parent, json!({}));
        self.add(parent, Some(key), json!(value));
    }

    fn make(&mut self, parent: Parent, empty: Value) {
        if !self.present.contains(&parent) {
            self.present.push(parent);
            self.add(parent, None, empty);
        }
    }

    fn add(&mut self, parent: Parent, key: Option<&str>, value: Value) {
        let path = PointerBuf::from_tokens(parent.iter().copied().chain(key));
        self.operations.push(PatchOperation::Add(AddOperation { path, value }));
    }
}
