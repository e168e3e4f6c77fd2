//! The options of the agent and of its commands.

use std::path::PathBuf;

use clap::Args;

use crate::certificate::CertificateAuthority;
use crate::injector::Injector;

/// Holds the paths that the agent and the operators' commands share.
#[derive(Debug, Args)]
pub struct Paths {
    /// containerd's socket
    #[arg(long, env = "CONTAINERD_ADDRESS", default_value = "/run/containerd/containerd.sock")]
    pub containerd: PathBuf,
    /// The directory of the socket and of the proxies' files
    #[arg(long, default_value = cni::input::RUN_DIR)]
    pub run_dir: PathBuf,
    /// The directory of the proxies' output, on the node and here
    #[arg(long, default_value = "/var/log/istio-aux")]
    pub log_dir: PathBuf,
}

/// Holds what the node's proxies have in common.
#[derive(Debug, Args)]
pub struct Settings {
    /// The paths.
    #[command(flatten)]
    pub paths: Paths,
    /// istiod's CA.
    #[command(flatten)]
    pub ca: CertificateAuthority,
    /// istiod's injector.
    #[command(flatten)]
    pub injector: Injector,
    /// The root of Istio's proxy image, on the node
    #[arg(long)]
    pub proxy_root: PathBuf,
    /// The installed plugin, as a path of the node: it writes the proxies' output, too
    #[arg(long, default_value = "/opt/cni/bin/istio-aux-cni")]
    pub logger: PathBuf,
    /// The node's cgroups
    #[arg(long, default_value = "/sys/fs/cgroup")]
    pub cgroups: PathBuf,
    /// Seconds for which a proxy that was upgraded may serve its connections
    #[arg(long, default_value_t = 3600)]
    pub drain_timeout: u64,
    /// The counters of a proxy that are kept when it ends, as a regular expression of Envoy's `/stats?filter=`; none by default
    #[arg(long, value_name = "REGEX")]
    pub ended_counters: Option<String>,
}

/// Holds the paths of the container runtime's CNI files.
#[derive(Debug, Args)]
pub struct CniPaths {
    /// The plugin to install
    #[arg(long = "cni-plugin", default_value = "/istio-aux-cni")]
    pub plugin: PathBuf,
    /// The runtime's directory of plugins
    #[arg(long = "cni-bin-dir", default_value = "/opt/cni/bin")]
    pub bin_dir: PathBuf,
    /// The configuration of the primary network
    #[arg(long = "cni-primary-dir", default_value = "/etc/cni/net.d")]
    pub primary_dir: PathBuf,
    /// The configuration of the runtime handler `istio-aux`
    #[arg(long = "cni-own-dir", default_value = "/etc/cni/istio-aux.d")]
    pub own_dir: PathBuf,
}
