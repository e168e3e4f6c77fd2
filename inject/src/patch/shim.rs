//! The shim's containers, which meet Pod Security *restricted*, and its volumes and mounts. A policy adds them after all of the
//! API server's plug-ins have run, so no plug-in fills in fields: those that matter are set here.

use contract::args::{INSTALL, WatchArgs};
use contract::names::{
    ACCOUNT_TOKEN_DIR, ANNOTATIONS_DIR, ANNOTATIONS_FILE, ANNOTATIONS_VOLUME, BINARY_DIR, INSTALL_CONTAINER,
    SHIM_CONTAINER, SHIM_VOLUME,
};
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
        let mut container = self.container(SHIM_CONTAINER, watch.to_args(), annotations_mount());
        container["restartPolicy"] = "Always".into();
        container
    }

    /// Returns the init container that copies the binary into the volume of [`binary_mount`].
    pub(super) fn installer(&self) -> Value {
        let mount = json!({"name": SHIM_VOLUME, "mountPath": BINARY_DIR});
        self.container(INSTALL_CONTAINER, vec![INSTALL.to_owned(), BINARY_DIR.to_owned()], mount)
    }

    fn container(&self, name: &str, args: Vec<String>, mount: Value) -> Value {
        let mut container = json!({
            "name": name,
            "image": self.settings.shim_image,
            "imagePullPolicy": self.settings.pull_policy.as_str(),
        });
        container["args"] = args.into();
        // The API server mounts the account's token into every container that has nothing there.
        let no_token = json!({"name": mount["name"], "mountPath": ACCOUNT_TOKEN_DIR, "readOnly": true});
        container["volumeMounts"] = vec![mount, no_token].into();
        container["securityContext"] = self.security_context();
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
        // With TPROXY or NET_BIND_SERVICE Istio's proxy is root; then the shim has its image's user.
        let proxy_user = || {
            let (_, proxy) = self.facts.classic_proxy()?;
            proxy.run_as_user().filter(|user| *user != 0)
        };
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

/// Returns the volume with the pod's annotations, which the kubelet keeps up to date.
pub(super) fn annotations_volume() -> Value {
    json!({
        "name": ANNOTATIONS_VOLUME,
        "downwardAPI": {"items": [{"path": ANNOTATIONS_FILE, "fieldRef": {"fieldPath": "metadata.annotations"}}]},
    })
}

/// Returns the mount of the annotations.
pub(super) fn annotations_mount() -> Value {
    json!({"name": ANNOTATIONS_VOLUME, "mountPath": ANNOTATIONS_DIR, "readOnly": true})
}

/// Returns the volume of the shim's binary.
pub(super) fn binary_volume(settings: &Settings) -> Value {
    match settings.delivery {
        Delivery::Copy => json!({"name": SHIM_VOLUME, "emptyDir": {"sizeLimit": "2Mi"}}),
        Delivery::ImageVolume => json!({
            "name": SHIM_VOLUME,
            "image": {"reference": settings.shim_image, "pullPolicy": settings.pull_policy.as_str()},
        }),
    }
}

/// Returns the mount of the binary.
pub(super) fn binary_mount() -> Value {
    json!({"name": SHIM_VOLUME, "mountPath": BINARY_DIR, "readOnly": true})
}
