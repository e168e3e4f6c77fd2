//! The shim in a pod: its containers, which meet Pod Security *restricted*, its volumes and mounts. What is added in a
//! reinvocation has missed the API server's own defaulting plug-ins, so all that matters is spelled out.

use contract::args::{INSTALL, Watch};
use contract::names::{
    BINARY_FOLDER, INSTALL_CONTAINER, LOCKS_FOLDER, LOCKS_VOLUME, SHIM_CONTAINER, SHIM_UID, STATE_FOLDER, VOLUME,
};
use serde::Serialize;

use super::Settings;
use super::mode::Delivery;
use super::pod::Pod;
use super::resources::{self, ShimQuantities};

/// A container of the shim.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShimContainer<'a> {
    pub(super) name: &'static str,
    image: &'a str,
    image_pull_policy: &'static str,
    args: Vec<String>,
    volume_mounts: [ShimMount; 1],
    security_context: SecurityContext,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<ShimQuantities<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart_policy: Option<&'static str>,
}

/// Pod Security *restricted*, and more.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SecurityContext {
    run_as_user: u32,
    run_as_group: u32,
    run_as_non_root: bool,
    allow_privilege_escalation: bool,
    read_only_root_filesystem: bool,
    capabilities: Capabilities,
    seccomp_profile: SeccompProfile,
}

#[derive(Serialize)]
struct Capabilities {
    drop: [&'static str; 1],
}

#[derive(Serialize)]
struct SeccompProfile {
    r#type: &'static str,
}

/// A volume of the shim, from one of its sources.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShimVolume<'a> {
    pub(super) name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    empty_dir: Option<EmptyDir>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<Image<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EmptyDir {
    size_limit: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Image<'a> {
    reference: &'a str,
    pull_policy: &'static str,
}

/// Where a container sees it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShimMount {
    pub(super) name: &'static str,
    mount_path: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only: Option<bool>,
}

impl ShimMount {
    fn writable(name: &'static str, mount_path: &'static str) -> Self {
        Self { name, mount_path, read_only: None }
    }
}

/// The shim's own container, for the end of `initContainers`.
pub(super) fn native_sidecar<'a>(watch: &Watch, pod: &Pod, settings: &'a Settings) -> ShimContainer<'a> {
    let container = container(SHIM_CONTAINER, watch.to_args(), STATE_FOLDER, pod, settings);
    ShimContainer { restart_policy: Some("Always"), ..container }
}

/// The init container that copies the binary to where [`binary_mount`] shows it.
pub(super) fn installer<'a>(pod: &Pod, settings: &'a Settings) -> ShimContainer<'a> {
    let args = vec![INSTALL.to_owned(), BINARY_FOLDER.to_owned()];
    container(INSTALL_CONTAINER, args, BINARY_FOLDER, pod, settings)
}

fn container<'a>(
    name: &'static str,
    args: Vec<String>,
    mount_path: &'static str,
    pod: &Pod,
    settings: &'a Settings,
) -> ShimContainer<'a> {
    ShimContainer {
        name,
        image: &settings.shim_image,
        image_pull_policy: settings.pull_policy.as_str(),
        args,
        volume_mounts: [ShimMount::writable(VOLUME, mount_path)],
        security_context: SecurityContext {
            run_as_user: SHIM_UID,
            run_as_group: SHIM_UID,
            run_as_non_root: true,
            allow_privilege_escalation: false,
            read_only_root_filesystem: true,
            capabilities: Capabilities { drop: ["ALL"] },
            seccomp_profile: SeccompProfile { r#type: "RuntimeDefault" },
        },
        resources: resources::for_shim(pod, &settings.resources),
        restart_policy: None,
    }
}

fn empty_dir(name: &'static str, size_limit: &'static str) -> ShimVolume<'static> {
    ShimVolume { name, empty_dir: Some(EmptyDir { size_limit }), image: None }
}

/// The volume of the shim's memory. On disk: a memory-backed one is empty after a reboot, and a shim without its memory
/// would wait for a container that has succeeded before it.
pub(super) fn state_volume() -> ShimVolume<'static> {
    empty_dir(VOLUME, "1Mi")
}

/// The volume of the shim's binary.
pub(super) fn binary_volume(settings: &Settings) -> ShimVolume<'_> {
    match settings.delivery {
        Delivery::Copy => empty_dir(VOLUME, "2Mi"),
        Delivery::ImageVolume => {
            let (reference, pull_policy) = (&settings.shim_image, settings.pull_policy.as_str());
            ShimVolume { name: VOLUME, empty_dir: None, image: Some(Image { reference, pull_policy }) }
        }
    }
}

/// Where a container finds the binary.
pub(super) fn binary_mount() -> ShimMount {
    ShimMount { read_only: Some(true), ..ShimMount::writable(VOLUME, BINARY_FOLDER) }
}

/// The volume in which wrapped containers say how they are; on disk, as the memory is.
pub(super) fn locks_volume() -> ShimVolume<'static> {
    empty_dir(LOCKS_VOLUME, "1Mi")
}

/// Where a container says it.
pub(super) fn locks_mount() -> ShimMount {
    ShimMount::writable(LOCKS_VOLUME, LOCKS_FOLDER)
}

/// The file of the shim's memory, in its own container.
pub(super) fn state_file() -> String {
    format!("{STATE_FOLDER}/seen")
}
