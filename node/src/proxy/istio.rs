//! Istio's own constants.

use contract::names::DEFAULT_STATUS_PORT;

/// The user of Istio's proxy, whose own traffic is not redirected.
pub(super) const PROXY_USER: u32 = 1337;
/// The port of Envoy's admin interface.
pub(super) const ADMIN_PORT: u16 = 15000;
/// The port of pilot-agent's probes and merged metrics.
pub(super) const STATUS_PORT: u16 = DEFAULT_STATUS_PORT;
/// The port of Envoy's readiness.
pub(super) const READINESS_PORT: u16 = 15021;
/// The port of Envoy's metrics.
pub(super) const METRICS_PORT: u16 = 15090;
