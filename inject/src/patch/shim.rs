//! The shim's containers, which meet Pod Security *restricted*, and its volumes and mounts. The API server validates what
//! is added on reinvocation, but does not default it, so the fields that matter are set.

use contract::args::{INSTALL, WatchArgs};
use contract::names::{BINARY_DIR, INSTALL_CONTAINER, LOCK_DIR, LOCK_VOLUME, SHIM_CONTAINER, SHIM_VOLUME, STATE_DIR};
use serde_json::{Value, json};

use crate::facts::Facts;
use crate::plan::ResourceRequirements;
use crate::{Delivery, Settings, ShimUser};

/// Builds the shim's containers.
pub(super) struct Shim<'a> {
    pub(super) settings: &'a Settings,
    pub(super) facts: &'a Facts<'a>,
    pub(super) resources: Option<&'a ResourceRequirements>,
}

impl Shim<'_> {
    /// Returns the shim's own container.
    pub(super) fn native_sidecar(&self, watch: &WatchArgs) -> Value {
        let mut container = self.container(SHIM_CONTAINER, &watch.to_args(), SHIM_VOLUME, STATE_DIR);
        container["restartPolicy"] = "Always".into();
        container
    }

    /// Returns the init container that copies the binary into the volume of [`binary_mount`].
    pub(super) fn installer(&self, volume: &str) -> Value {
        self.container(INSTALL_CONTAINER, &[INSTALL.to_owned(), BINARY_DIR.to_owned()], volume, BINARY_DIR)
    }

    fn container(&self, name: &str, args: &[String], volume: &str, mount_path: &str) -> Value {
        let mut container = json!({
            "name": name,
            "image": self.settings.shim_image,
            "imagePullPolicy": self.settings.pull_policy.as_str(),
            "args": args,
            "volumeMounts": [{"name": volume, "mountPath": mount_path}],
            "securityContext": self.security_context(),
        });
        if let Some(resources) = self.resources {
            container["resources"] = json!(resources);
        }
        container
    }

    fn security_context(&self) -> Value {
        let mut context = json!({
            "runAsNonRoot": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        let proxy_user = || self.facts.classic_proxy().and_then(|(_, proxy)| proxy.run_as_user());
        let user = match self.settings.user {
            ShimUser::Uid(uid) => Some(i64::from(uid)),
            ShimUser::Proxy => proxy_user(),
            ShimUser::Unset => None,
        };
        if let Some(user) = user {
            context["runAsUser"] = user.into();
            // A security context constraint of OpenShift may allow a user but not the group of the same number.
            if self.settings.user != ShimUser::Proxy {
                context["runAsGroup"] = user.into();
            }
        }
        context
    }
}

/// Returns the volume of the state file. It is on disk: after a reboot a memory-backed one is empty, and a shim without its
/// state would wait for a container that has succeeded.
pub(super) fn state_volume() -> Value {
    empty_dir(SHIM_VOLUME, "1Mi")
}

/// Returns the volume of the shim's binary.
pub(super) fn binary_volume(name: &str, settings: &Settings) -> Value {
    match settings.delivery {
        Delivery::Copy => empty_dir(name, "2Mi"),
        Delivery::ImageVolume => json!({
            "name": name,
            "image": {"reference": settings.shim_image, "pullPolicy": settings.pull_policy.as_str()},
        }),
    }
}

/// Returns the mount of the binary.
pub(super) fn binary_mount(volume: &str) -> Value {
    json!({"name": volume, "mountPath": BINARY_DIR, "readOnly": true})
}

/// Returns the volume in which wrapped containers report. It is on disk, as the state file is.
pub(super) fn lock_volume() -> Value {
    empty_dir(LOCK_VOLUME, "1Mi")
}

/// Returns the mount in which a wrapped container reports: the subdirectory of its own name only.
pub(super) fn lock_mount(container: &str) -> Value {
    json!({"name": LOCK_VOLUME, "mountPath": LOCK_DIR, "subPath": container})
}

/// Returns the mount in which the proxy's container reads all reports.
pub(super) fn all_locks_mount() -> Value {
    json!({"name": LOCK_VOLUME, "mountPath": LOCK_DIR, "readOnly": true})
}

fn empty_dir(name: &str, size_limit: &str) -> Value {
    json!({"name": name, "emptyDir": {"sizeLimit": size_limit}})
}
