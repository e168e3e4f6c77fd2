//! Implements `istio-aux-webhook verify-injection`, the command of the chart's test pod.

use clap::Args;
use contract::names::{HOLD_FIELD, PROXY_CONFIG_ANNOTATION};

/// Fail unless the pod that runs this was injected
///
/// For a pod that opts in, such as the one of `helm test`. The downward API passes the annotation.
#[derive(Debug, Args)]
#[command(after_help = "example: istio-aux-webhook verify-injection --proxy-config=\"$PROXY_CONFIG\"")]
pub(crate) struct VerifyInjectionArgs {
    /// Annotation proxy.istio.io/config of the pod; empty if it has none
    #[arg(long, value_name = "YAML")]
    proxy_config: String,
}

/// Reports a pod whose annotation does not have the startup hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pod was not injected: its annotation {PROXY_CONFIG_ANNOTATION} has no {HOLD_FIELD}; next: istio-aux check"
)]
pub(crate) struct NotInjected;

/// Fails unless the annotation has the startup hold.
pub(crate) fn verify_injection(arguments: &VerifyInjectionArgs) -> Result<(), NotInjected> {
    if !arguments.proxy_config.contains(HOLD_FIELD) {
        return Err(NotInjected);
    }
    println!("the pod was injected");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pod_with_the_hold_passes() {
        for (proxy_config, passes) in
            [("{holdApplicationUntilProxyStarts: true}", true), ("", false), ("concurrency: 2", false)]
        {
            let verified = verify_injection(&VerifyInjectionArgs { proxy_config: proxy_config.to_owned() });
            assert_eq!(verified.is_ok(), passes, "{proxy_config}");
        }
        let reason = NotInjected.to_string();
        assert!(reason.contains("was not injected") && reason.contains("next: istio-aux check"), "{reason}");
    }
}
