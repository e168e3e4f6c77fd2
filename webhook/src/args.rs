//! Parses the command line of `istio-aux-webhook`.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use contract::error_chain::display_chain;
use inject::args::ShimArgs;

use crate::log::LogArgs;
use crate::serve;
use crate::verify_injection::{VerifyInjectionArgs, verify_injection};

/// Limits the validity from below: shorter certificates would be renewed all the time.
const VALIDITY_MIN: Duration = Duration::from_mins(1);
/// Limits the validity to ten years.
const VALIDITY_MAX: Duration = Duration::from_hours(10 * 366 * 24);

/// Serve admission reviews of pods, until SIGTERM
#[derive(Debug, Parser)]
#[command(
    name = "istio-aux-webhook",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    group = ArgGroup::new("certificate").required(true).args(["self_signed", "tls_cert"]),
    after_help = "examples:
  istio-aux-webhook --self-signed
  istio-aux-webhook --tls-cert /tls/tls.crt --tls-key /tls/tls.key"
)]
pub struct WebhookArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Issue and renew the certificate, store it in a Secret, and have the webhook configurations trust it
    #[arg(long)]
    self_signed: bool,
    /// Serve this certificate and its chain, in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Use this private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Admit only clients whose certificate is signed by a CA of this file, in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Serve admission reviews here, over TLS. `[::]` also takes IPv4, and becomes `0.0.0.0` on a host without IPv6
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8443")]
    pub(crate) listen: SocketAddr,
    /// Serve /healthz, /readyz and /metrics here, in plain HTTP
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8080")]
    pub(crate) health_listen: SocketAddr,
    /// Use the API server's native sidecars (Kubernetes 1.29 and later). Without them the shim is the parent of
    /// istio-proxy. auto asks the server for its version; where the feature gate `SidecarContainers` is disabled, say disabled
    #[arg(long, value_enum, value_name = "auto|enabled|disabled", default_value_t = NativeSidecars::Auto)]
    pub(crate) native_sidecars: NativeSidecars,
    /// Accept new connections for this time after SIGTERM, until API servers use other replicas
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) drain_delay: Duration,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) shim: ShimArgs,
    #[command(flatten)]
    pub(crate) self_signed_args: Box<SelfSignedArgs>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(hide = true)]
    VerifyInjection(VerifyInjectionArgs),
}

/// Holds the options of a self-signed certificate.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --self-signed")]
pub(crate) struct SelfSignedArgs {
    /// Namespace of Secret and Service; by default that of the pod
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Secret that stores the certificate, which must exist
    #[arg(long, value_name = "NAME", default_value = "istio-aux-certificate")]
    pub(crate) secret: String,
    /// Service that the API server calls
    #[arg(long, value_name = "NAME", default_value = "istio-aux")]
    pub(crate) service: String,
    /// `MutatingWebhookConfigurations` that trust the certificate
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values = ["istio-aux", "zz-istio-aux"])]
    pub(crate) configurations: Vec<String>,
    /// Validity of a certificate; it is renewed at two thirds of that
    #[arg(long, value_name = "DURATION", default_value = "365d", value_parser = validity)]
    pub(crate) certificate_validity: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NativeSidecars {
    Auto,
    Enabled,
    Disabled,
}

fn validity(text: &str) -> Result<Duration, &'static str> {
    let validity = humantime::parse_duration(text).ok();
    let validity = validity.filter(|validity| (VALIDITY_MIN..=VALIDITY_MAX).contains(validity));
    validity.ok_or("takes a minute to ten years, such as 365d")
}

/// Parses a program's arguments. Returns its exit status after printing help, or one line for wrong arguments.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        if error.use_stderr() {
            eprintln!("{}: {}", P::command().get_name(), inject::args::one_line(&error));
            return ExitCode::from(2);
        }
        // A reader that has read enough, such as `head`, is not an error.
        let _ = error.print();
        ExitCode::SUCCESS
    })
}

impl WebhookArgs {
    /// Runs the webhook until SIGTERM or SIGINT. Returns the exit status: 0 stopped, 1 failed.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let result: Result<(), Box<dyn Error>> = match self.command {
            Some(Command::VerifyInjection(arguments)) => verify_injection(&arguments).map_err(Into::into),
            None => serve::run(self).map_err(Into::into),
        };
        let Err(error) = result else { return ExitCode::SUCCESS };
        eprintln!("istio-aux-webhook: {}", display_chain(&*error));
        ExitCode::FAILURE
    }
}
