//! `istio-aux serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use super::CliResult;
use super::log::LogArgs;
use super::shim::ShimArgs;
use crate::causes::with_causes;
use crate::delivery::{SHIM_BINARY_PATH, ShimBinary};
use crate::serve::{self, Options, SelfSigned, Source};

/// Certificates of a shorter validity would be renewed all the time.
const VALIDITY_MIN: Duration = Duration::from_mins(1);
/// Ten years.
const VALIDITY_MAX: Duration = Duration::from_hours(10 * 366 * 24);

/// Run the webhook
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("certificate").required(true).args(["self_signed", "tls_cert"]),
    after_help = "examples:
  istio-aux serve --self-signed
  istio-aux serve --tls-cert /tls/tls.crt --tls-key /tls/tls.key"
)]
pub(super) struct Serve {
    /// Issue and renew the certificate, store it in a Secret, and have the webhook configuration trust it
    #[arg(long)]
    self_signed: bool,
    /// The server's certificate and its chain, in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Admit only clients whose certificate is signed by a CA of this file, in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Where admission reviews are served, over TLS. `[::]` also takes IPv4, and becomes `0.0.0.0` on a host without IPv6
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are served, in plain HTTP
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8080")]
    health_listen: SocketAddr,
    /// Whether the API server has native sidecars (Kubernetes 1.29 and later). Without them the shim is the parent of
    /// istio-proxy. auto asks the server for its version; where the feature gate `SidecarContainers` is disabled, say disabled
    #[arg(long, value_enum, value_name = "auto|enabled|disabled", default_value_t = NativeSidecars::Auto)]
    native_sidecars: NativeSidecars,
    /// How long new connections are still accepted after SIGTERM, until API servers use other replicas
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    drain_delay: Duration,
    /// The shim's binary, for delivery config-map
    #[arg(long, value_name = "FILE", default_value = SHIM_BINARY_PATH)]
    shim_binary: PathBuf,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    shim: ShimArgs,
    #[command(flatten)]
    self_signed_args: Box<SelfSignedArgs>,
}

/// Where a self-signed certificate is stored, and who trusts it.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --self-signed")]
struct SelfSignedArgs {
    /// The namespace of Secret and Service; by default the namespace of the pod
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// The Secret that stores the certificate, which must exist
    #[arg(long, value_name = "NAME", default_value = "istio-aux-certificate")]
    secret: String,
    /// The Service that the API server calls
    #[arg(long, value_name = "NAME", default_value = "istio-aux")]
    service: String,
    /// The `MutatingWebhookConfiguration` that trusts the certificate
    #[arg(long, value_name = "NAME", default_value = "istio-aux")]
    configuration: String,
    /// How long a certificate is valid; it is renewed at two thirds of that
    #[arg(long, value_name = "DURATION", default_value = "365d", value_parser = validity)]
    certificate_validity: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NativeSidecars {
    Auto,
    #[value(alias = "on")]
    Enabled,
    #[value(alias = "off")]
    Disabled,
}

fn validity(text: &str) -> Result<Duration, String> {
    let validity =
        humantime::parse_duration(text).ok().filter(|validity| (VALIDITY_MIN..=VALIDITY_MAX).contains(validity));
    validity.ok_or_else(|| "takes a minute to ten years, such as 365d".to_owned())
}

pub(super) fn run(arguments: Serve) -> CliResult {
    arguments.log.start();
    let certificate = match (arguments.tls_cert, arguments.tls_key) {
        (Some(cert), Some(key)) => Source::Files { cert, key },
        _ => Source::SelfSigned(SelfSigned {
            namespace: arguments.self_signed_args.namespace,
            secret: arguments.self_signed_args.secret,
            service: arguments.self_signed_args.service,
            configuration: arguments.self_signed_args.configuration,
            valid_for: arguments.self_signed_args.certificate_validity,
        }),
    };
    let binary = arguments.shim.is_by_config_map().then(|| ShimBinary::read(&arguments.shim_binary)).transpose();
    let config_map = binary.map_err(|reason| format!("--shim-binary: {reason}"))?.map(|it| it.config_map_name());
    let options = Options {
        listen: arguments.listen,
        health_listen: arguments.health_listen,
        certificate,
        client_ca: arguments.client_ca,
        drain_delay: arguments.drain_delay,
        settings: arguments.shim.settings(arguments.native_sidecars != NativeSidecars::Disabled),
        config_map,
        ask_for_native_sidecars: arguments.native_sidecars == NativeSidecars::Auto,
    };
    serve::run(options).map(|()| ExitCode::SUCCESS).map_err(|error| with_causes(&error))
}
