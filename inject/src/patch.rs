//! Writing a JSON Patch against the raw document: parents are made where they are missing, nothing else is touched.

use std::fmt;

use serde::Serialize;

use super::pod::Pod;
use super::shim::{ShimContainer, ShimMount, ShimVolume};

const METADATA: &str = "/metadata";
const LABELS: &str = "/metadata/labels";
const ANNOTATIONS: &str = "/metadata/annotations";
const INIT_CONTAINERS: &str = "/spec/initContainers";
const VOLUMES: &str = "/spec/volumes";

/// A JSON Patch (RFC 6902), written as text at once: the API server is who reads it.
#[derive(Clone, PartialEq, Eq)]
pub struct Patch {
    text: Vec<u8>,
    operations: usize,
}

impl Default for Patch {
    fn default() -> Self {
        Self { text: b"[]".to_vec(), operations: 0 }
    }
}

impl fmt::Debug for Patch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl Patch {
    /// The list of its operations, in JSON.
    #[must_use]
    pub fn as_json(&self) -> &[u8] {
        &self.text
    }

    /// How many operations it has.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations == 0
    }

    fn push(&mut self, operation: &impl Serialize) {
        self.text.pop();
        if self.operations > 0 {
            self.text.push(b',');
        }
        // Memory takes all, and texts, lists and objects with texts for keys can always be written.
        let _ = serde_json::to_writer(&mut self.text, operation);
        self.text.push(b']');
        self.operations += 1;
    }
}

/// An operation, and where it is done, by a JSON Pointer (RFC 6901).
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation<'a, V> {
    Add { path: &'a str, value: V },
    Move { from: &'a str, path: &'a str },
}

/// Collects the operations for one pod.
pub(super) struct PatchWriter<'p> {
    pod: &'p Pod<'p>,
    /// The parents that the document has, or that an operation has made.
    present: Vec<String>,
    patch: Patch,
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
            parents.into_iter().filter(|(_, is_there)| *is_there).map(|(parent, _)| parent.to_owned()).collect();
        let mut patch = Patch::default();
        patch.text.reserve(4 << 10);
        Self { pod, present, patch, first: None }
    }

    /// Sets an annotation, unless it has this value.
    pub(super) fn annotation(&mut self, key: &str, value: &str) {
        if self.pod.annotation(key).as_deref() != Some(value) {
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
    pub(super) fn init_container(&mut self, container: &ShimContainer) {
        let mut all = self.pod.spec.init_containers.iter().flatten();
        if !all.any(|other| other.name.as_str() == container.name) {
            self.append(INIT_CONTAINERS, container);
        }
    }

    /// Appends to `volumes`, unless one of this name is there.
    pub(super) fn volume(&mut self, volume: &ShimVolume) {
        let mut all = self.pod.spec.volumes.iter().flatten();
        if !all.any(|other| other.name.as_str() == volume.name) {
            self.append(VOLUMES, volume);
        }
    }

    /// Sets a container's command.
    pub(super) fn command(&mut self, container: usize, words: &[String]) {
        self.add(&container_field(container, "command"), words);
    }

    /// Appends to a container's `args`.
    pub(super) fn args(&mut self, container: usize, words: &[&str]) {
        let list = container_field(container, "args");
        if self.pod.spec.containers[container].args.is_some() {
            self.present.push(list.clone());
        }
        for word in words {
            self.append(&list, word);
        }
    }

    /// Sets what is run when a container has started.
    pub(super) fn post_start(&mut self, container: usize, command: &[&str]) {
        let lifecycle = container_field(container, "lifecycle");
        if self.pod.spec.containers[container].lifecycle.is_some() {
            self.present.push(lifecycle.clone());
        }
        self.make(&lifecycle, &Empty {});
        self.add(&format!("{lifecycle}/postStart"), &Hook { exec: Exec { command } });
    }

    /// Appends to a container's `volumeMounts`, unless there is one of the same volume.
    pub(super) fn mount(&mut self, container: usize, mount: &ShimMount) {
        let mounts = &self.pod.spec.containers[container].volume_mounts;
        if mounts.iter().flatten().any(|other| other.name.as_str() == mount.name) {
            return;
        }
        let list = container_field(container, "volumeMounts");
        if mounts.is_some() {
            self.present.push(list.clone());
        }
        self.append(&list, mount);
    }

    /// Moves a container to the front of `containers`, once. Whatever is written to containers comes before this: it is
    /// the last operation.
    pub(super) fn first(&mut self, container: usize) {
        self.first = (container > 0).then_some(container);
    }

    /// The patch.
    pub(super) fn finish(mut self) -> Patch {
        if let Some(container) = self.first {
            let place = |index: usize| format!("/spec/containers/{index}");
            let operation: Operation<()> = Operation::Move { from: &place(container), path: &place(0) };
            self.patch.push(&operation);
        }
        self.patch
    }

    /// Lets the pod's containers see each other's processes.
    pub(super) fn share_process_namespace(&mut self) {
        if self.pod.spec.share_process_namespace != Some(true) {
            self.add("/spec/shareProcessNamespace", &true);
        }
    }

    fn metadata(&mut self, parent: &str, key: &str, value: &str) {
        self.make(METADATA, &Empty {});
        self.make(parent, &Empty {});
        self.add(&format!("{parent}/{}", key.replace('~', "~0").replace('/', "~1")), value);
    }

    fn append(&mut self, list: &str, item: &(impl Serialize + ?Sized)) {
        self.make(list, &[(); 0]);
        self.add(&format!("{list}/-"), item);
    }

    fn make(&mut self, parent: &str, empty: &impl Serialize) {
        if !self.present.iter().any(|present| present == parent) {
            self.present.push(parent.to_owned());
            self.add(parent, empty);
        }
    }

    fn add(&mut self, path: &str, value: &(impl Serialize + ?Sized)) {
        self.patch.push(&Operation::Add { path, value });
    }
}

/// An empty object.
#[derive(Serialize)]
struct Empty {}

/// What is run when a container has started.
#[derive(Serialize)]
struct Hook<'a> {
    exec: Exec<'a>,
}

#[derive(Serialize)]
struct Exec<'a> {
    command: &'a [&'a str],
}

fn container_field(container: usize, field: &str) -> String {
    format!("/spec/containers/{container}/{field}")
}
