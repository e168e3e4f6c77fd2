//! Implements `istio-aux-webhook verify-injection`, the command of the chart's test pod.

use clap::Args;
use contract::names::{HOLD_FIELD, PROXY_CONFIG_ANNOTATION};

/// Fail unless the pod that runs this was injected
///
/// For a pod that opts in, such as the one of `helm test`. The downward API passes the annotation.
#[derive(Debug, Args)]
#[command(after_help = "example: istio-aux-webhook verify-injection --proxy-config=\"$PROXY_CONFIG\"")]
pub(crate) struct VerifyInjectionArgs {
    /// The pod's annotation proxy.istio.io/config; empty where it has none
    #[arg(long, value_name = "YAML")]
    proxy_config: String,
}

/// Fails unless the annotation has the startup hold.
pub(crate) fn verify_injection(arguments: &VerifyInjectionArgs) -> Result<(), String> {
    if arguments.proxy_config.contains(HOLD_FIELD) {
        println!("the pod was injected");
        return Ok(());
    }
    Err(format!(
        "the pod was not injected: its annotation {PROXY_CONFIG_ANNOTATION} has no {HOLD_FIELD}; next: istio-aux check"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(proxy_config: &str) -> Result<(), String> {
        verify_injection(&VerifyInjectionArgs { proxy_config: proxy_config.to_owned() })
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
