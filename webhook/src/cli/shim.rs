//! What the shim is like in pods: the options that the webhook and the commands beside it share.

use clap::{Args, ValueEnum};
use contract::names::{PILOT_AGENT, SHIM_IMAGE};
use inject::{Delivery, PullPolicy, Settings, ShimResources};

#[derive(Debug, Args)]
#[command(next_help_heading = "The shim in pods")]
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
    /// What the shim's containers ask of the node, where a `LimitRange` wants other than this
    #[arg(long, value_name = "NAME=QUANTITY", value_delimiter = ',', default_values = ["cpu=1m", "memory=4Mi"], value_parser = quantity)]
    shim_requests: Vec<(String, String)>,
    /// How much they may have at most; where pods are Guaranteed, what they ask for too
    #[arg(long, value_name = "NAME=QUANTITY", value_delimiter = ',', default_values = ["memory=16Mi"], value_parser = quantity)]
    shim_limits: Vec<(String, String)>,
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
            resources: ShimResources { requests: self.shim_requests, limits: self.shim_limits },
        }
    }
}

fn pull_policy(text: &str) -> Result<PullPolicy, String> {
    let all = [PullPolicy::IfNotPresent, PullPolicy::Always, PullPolicy::Never];
    all.into_iter()
        .find(|policy| policy.as_str() == text)
        .ok_or_else(|| "takes IfNotPresent, Always or Never".to_owned())
}

/// `cpu=1m` or `memory=4Mi`: a quantity that the API server would refuse would have every pod refused.
fn quantity(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, quantity)| {
        let digits = quantity.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(quantity.len());
        let (number, unit) = quantity.split_at(digits);
        let units = ["", "m", "k", "M", "G", "Ki", "Mi", "Gi"];
        matches!(*name, "cpu" | "memory") && number.parse::<f64>().is_ok() && units.contains(&unit)
    });
    let (name, quantity) =
        parts.ok_or_else(|| "takes cpu=QUANTITY and memory=QUANTITY, such as memory=4Mi".to_owned())?;
    Ok((name.to_owned(), quantity.to_owned()))
}
