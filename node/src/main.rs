//! `istio-aux-node`: the agent, the commands of its init containers, and those for operators.

#![forbid(unsafe_code)]

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use kube::Config;
use node::agent;
use node::containerd::Containerd;
use node::error::{Context, Result};
use node::handler::CniDirectories;
use node::identities::Identities;
use node::pod::client;
use node::proxy::Node;
use node::settings::{CniPaths, Paths, Settings};
use node::start_limiter::StartLimiter;
use node::status::{self, Proxy};
use node::{ready, rootfs};
use tokio::sync::Semaphore;

const API_TIMEOUT: Duration = Duration::from_secs(10);
/// Each upgrade needs a core for a second.
const UPGRADES_AT_A_TIME: usize = 2;
/// Each reads its pod, of up to 1 MiB, and most get the certificate that another of their account has requested.
const RENEWALS_AT_A_TIME: usize = 2;
/// A start needs a core for half a second, and waits for the API server, istiod and containerd besides.
const STARTS_OF_A_CORE: usize = 2;
/// A start that takes longer waits for something that others need not wait for, such as a network policy of its pod's.
const START_LIMIT: Duration = Duration::from_secs(15);

#[derive(Parser)]
#[command(name = "istio-aux-node", version, about = "Runs the Istio proxies of pods on the node")]
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
        node: Paths,
        /// `table`, or `json` for programs
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Fail unless the agent takes requests and containerd has the handler, for the agent's readiness probe
    Ready {
        #[command(flatten)]
        node: Paths,
        #[command(flatten)]
        cni: CniDirectories,
    },
    /// Print the log of a pod's proxy
    Logs {
        #[command(flatten)]
        node: Paths,
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
struct AgentArgs {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    cni: CniPaths,
    /// The port of the node on which metrics are served, over plain HTTP at /metrics; none by default
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let result = match Cli::parse().command {
        Command::Agent(args) => run_agent(*args),
        Command::Status { node, output } => print_status(&node, output),
        Command::Ready { node, cni } => check_ready(&node, &cni),
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
async fn proxies(node: &Paths) -> Result<Vec<Proxy>> {
    let containerd = Containerd::at(&node.containerd)?;
    Ok(status::proxies(&containerd, &node.run_dir).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn check_ready(node: &Paths, cni: &CniDirectories) -> Result<()> {
    ready::check(&Containerd::at(&node.containerd)?, &node.run_dir, cni).await
}

fn print_status(node: &Paths, output: Output) -> Result<()> {
    let proxies = proxies(node)?;
    match output {
        Output::Table => print!("{}", status::table(&proxies)),
        Output::Json => println!("{:#}", status::to_json(&proxies)),
    }
    Ok(())
}

fn print_log(node: &Paths, pod: &str) -> Result<()> {
    status::write_log(pod, &proxies(node)?, &node.log_dir, std::io::stdout())
}

#[tokio::main(flavor = "current_thread")]
async fn run_agent(args: AgentArgs) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let api = Config::infer().await.context("the API server")?;
    let node = Node {
        client: client(api, API_TIMEOUT).context("the API server")?,
        containerd: Containerd::at(&args.settings.paths.containerd)?,
        settings: args.settings,
        identities: Identities::default(),
        upgrades: Semaphore::new(UPGRADES_AT_A_TIME),
        renewals: Semaphore::new(RENEWALS_AT_A_TIME),
        starts: StartLimiter::new(STARTS_OF_A_CORE * cores, START_LIMIT),
        restarts: StartLimiter::new(STARTS_OF_A_CORE * cores, START_LIMIT),
        ended: Arc::default(),
    };
    agent::run(node, args.cni, args.metrics_port).await.map(|never| match never {})
}
