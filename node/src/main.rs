//! `istio-aux-node`: the agent, the commands of its init containers, and those for operators.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use kube::Client;
use node::agent::{self, CniPaths};
use node::certificate::CertificateAuthority;
use node::containerd::Containerd;
use node::error::{Context, Result};
use node::proxy::Node;
use node::rootfs;
use node::status::{self, Proxy};
use tokio::sync::Semaphore;

/// Each upgrade needs a core for a second.
const UPGRADES_AT_A_TIME: usize = 2;

#[derive(Parser)]
#[command(name = "istio-aux-node", version, about = "Runs the Istio proxies of pods on the node (experimental)")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the agent
    Agent(Box<AgentArgs>),
    /// List the proxies of this node: `kubectl -n istio-aux-node exec AGENT-POD -- /istio-aux-node status`
    Status {
        #[command(flatten)]
        node: NodeArgs,
        /// `table`, or `json` for programs
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the log of a pod's proxy
    Logs {
        #[command(flatten)]
        node: NodeArgs,
        /// The pod, as NAMESPACE/NAME
        pod: String,
    },
    /// Copy this program to FILE, for an init container of another image
    CopySelf {
        /// The new file
        file: PathBuf,
    },
    /// Copy the root of the image that this runs in to DIRECTORY, unless that exists
    CopyRoot {
        /// The new directory
        directory: PathBuf,
    },
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

#[derive(Args)]
struct NodeArgs {
    /// containerd's socket
    #[arg(long, env = "CONTAINERD_ADDRESS", default_value = "/run/containerd/containerd.sock")]
    containerd: PathBuf,
    /// The directory of the socket and of the proxies' files
    #[arg(long, default_value = cni::input::RUN_DIR)]
    run_dir: PathBuf,
    /// The directory of the proxies' output
    #[arg(long, default_value = "/var/log/istio-aux")]
    log_dir: PathBuf,
}

#[derive(Args)]
struct AgentArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The root of Istio's proxy image, on the node
    #[arg(long)]
    proxy_root: PathBuf,
    /// The node's cgroups
    #[arg(long, default_value = "/sys/fs/cgroup")]
    cgroups: PathBuf,
    /// The plugin to install
    #[arg(long, default_value = "/istio-aux-cni")]
    cni_plugin: PathBuf,
    /// The runtime's directory of plugins
    #[arg(long, default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// The configuration of the primary network
    #[arg(long, default_value = "/etc/cni/net.d")]
    cni_primary_dir: PathBuf,
    /// The configuration of the runtime handler `istio-aux`
    #[arg(long, default_value = "/etc/cni/istio-aux.d")]
    cni_own_dir: PathBuf,
    /// istiod's certificate authority
    #[arg(long, default_value = "https://istiod.istio-system.svc:15012")]
    ca_address: String,
    /// The CA of istiod's own certificate
    #[arg(long, default_value = "/var/run/secrets/istio/root-cert.pem")]
    ca_root: PathBuf,
    /// The agent's token for istiod
    #[arg(long, default_value = "/var/run/secrets/tokens/istio-token")]
    token: PathBuf,
    /// The cluster's name in the mesh
    #[arg(long, default_value = "Kubernetes")]
    cluster_id: String,
    /// The cluster's DNS domain
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    /// istiod's namespace
    #[arg(long, default_value = "istio-system")]
    mesh_namespace: String,
    /// The `ConfigMap` with the mesh's configuration
    #[arg(long, default_value = "istio")]
    mesh_config: String,
    /// Seconds for which a proxy that was upgraded may serve its connections
    #[arg(long, default_value_t = 3600)]
    drain_timeout: u64,
    /// The port of the node on which metrics are served, over plain HTTP at /metrics; none by default
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let result = match Cli::parse().command {
        Command::Agent(args) => run_agent(*args),
        Command::Status { node, output } => print_status(&node, output),
        Command::Logs { node, pod } => print_log(&node, &pod),
        Command::CopySelf { file } => copy_self(&file).context(file.display()),
        Command::CopyRoot { directory } => rootfs::copy("/".as_ref(), &directory).context(directory.display()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("istio-aux-node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn copy_self(file: &std::path::Path) -> std::io::Result<()> {
    std::fs::copy(std::env::current_exe()?, file).map(|_| ())
}

#[tokio::main(flavor = "current_thread")]
async fn proxies(node: &NodeArgs) -> Result<Vec<Proxy>> {
    let containerd = Containerd::at(&node.containerd)?;
    Ok(status::proxies(&containerd, &node.run_dir).await?)
}

fn print_status(node: &NodeArgs, output: Output) -> Result<()> {
    let proxies = proxies(node)?;
    match output {
        Output::Table => print!("{}", status::table(&proxies)),
        Output::Json => println!("{:#}", status::to_json(&proxies)),
    }
    Ok(())
}

fn print_log(node: &NodeArgs, pod: &str) -> Result<()> {
    status::write_log(pod, &proxies(node)?, &node.log_dir, std::io::stdout())
}

#[tokio::main(flavor = "current_thread")]
async fn run_agent(args: AgentArgs) -> Result<()> {
    let client = Client::try_default().await.context("the API server")?;
    let containerd = Containerd::at(&args.node.containerd)?;
    let node = Node {
        client,
        containerd,
        ca: CertificateAuthority {
            address: args.ca_address,
            root: args.ca_root,
            token: args.token,
            cluster: args.cluster_id,
        },
        mesh_namespace: args.mesh_namespace,
        mesh_config: args.mesh_config,
        cluster_domain: args.cluster_domain,
        proxy_root: args.proxy_root,
        cgroups: args.cgroups,
        run_dir: args.node.run_dir,
        log_dir: args.node.log_dir,
        resolv_conf: "/etc/resolv.conf".into(),
        drain_timeout: Duration::from_secs(args.drain_timeout),
        upgrades: Semaphore::new(UPGRADES_AT_A_TIME),
    };
    let cni = CniPaths {
        plugin: args.cni_plugin,
        bin_dir: args.cni_bin_dir,
        primary_dir: args.cni_primary_dir,
        own_dir: args.cni_own_dir,
    };
    agent::run(node, cni, args.metrics_port).await.map(|never| match never {})
}
