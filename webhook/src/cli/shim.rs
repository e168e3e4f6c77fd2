//! What the shim is like in pods: the options that the webhook and the commands beside it share.

use clap::{Args, ValueEnum};
use contract::names::{PILOT_AGENT, SHIM_IMAGE};

use crate::inject::{Delivery, PullPolicy, Settings};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The shim's image
    #[arg(long, value_name = "IMAGE", default_value_t = format!("{SHIM_IMAGE}:{}", env!("CARGO_PKG_VERSION")))]
    shim_image: String,
    /// When nodes pull that image; Always where the server runs its plug-in `AlwaysPullImages`
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent", value_parser = pull_policy)]
    shim_pull_policy: PullPolicy,
    /// How the shim gets into containers that are not its own: an init container copies it, or its image is a volume
    /// (Kubernetes 1.35 with containerd 2.1 or CRI-O, and later, on every node)
    #[arg(long, value_enum, default_value_t = DeliveryChoice::Copy)]
    delivery: DeliveryChoice,
    /// What istio-proxy runs where its container has no command
    #[arg(long, value_name = "PATH", default_value = PILOT_AGENT)]
    proxy_command: String,
}

/// A [`Delivery`] by its name.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum DeliveryChoice {
    Copy,
    ImageVolume,
}

impl Options {
    /// The settings, for a server that has native sidecars, or has none.
    pub(super) fn settings(self, native_sidecars: bool) -> Settings {
        Settings {
            shim_image: self.shim_image,
            pull_policy: self.shim_pull_policy,
            delivery: match self.delivery {
                DeliveryChoice::Copy => Delivery::Copy,
                DeliveryChoice::ImageVolume => Delivery::ImageVolume,
            },
            native_sidecars,
            proxy_command: self.proxy_command,
        }
    }
}

fn pull_policy(text: &str) -> Result<PullPolicy, String> {
    let all = [PullPolicy::IfNotPresent, PullPolicy::Always, PullPolicy::Never];
    all.into_iter()
        .find(|policy| policy.as_str() == text)
        .ok_or_else(|| "takes IfNotPresent, Always or Never".to_owned())
}
