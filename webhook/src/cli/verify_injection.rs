//! `istio-aux verify-injection`: what the chart's test runs in a pod.

use std::process::ExitCode;

use clap::Args;
use contract::names::{HOLD_FIELD, PROXY_CONFIG_ANNOTATION};

use super::CliResult;

/// Fail unless the pod that runs this was injected
///
/// For a pod that opts in, such as the one of `helm test`. The downward API passes the annotation.
#[derive(Debug, Args)]
#[command(after_help = "example: istio-aux verify-injection --proxy-config=\"$PROXY_CONFIG\"")]
pub(super) struct VerifyInjectionArgs {
    /// The pod's annotation proxy.istio.io/config; empty where it has none
    #[arg(long, value_name = "YAML")]
    proxy_config: String,
}

pub(super) fn run(arguments: &VerifyInjectionArgs) -> CliResult {
    if arguments.proxy_config.contains(HOLD_FIELD) {
        println!("the pod was injected");
        return Ok(ExitCode::SUCCESS);
    }
    Err(format!(
        "the pod was not injected: its annotation {PROXY_CONFIG_ANNOTATION} has no {HOLD_FIELD}; next: istio-aux check"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(proxy_config: &str) -> CliResult {
        run(&VerifyInjectionArgs { proxy_config: proxy_config.to_owned() })
    }

    #[test]
    fn a_pod_with_the_hold_passes() {
        assert!(verify("{holdApplicationUntilProxyStarts: true}").is_ok());
    }

    #[test]
    fn a_pod_without_the_hold_fails_with_the_next_step() {
        for proxy_config in ["", "concurrency: 2"] {
            let reason = verify(proxy_config).unwrap_err();
            assert!(reason.contains("was not injected") && reason.contains("next: istio-aux check"), "{reason}");
        }
    }
}
