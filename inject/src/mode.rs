//! The mode of a pod. `plan/mode.rs` chooses it.

/// The part of istio-aux that a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// The startup hold, at most.
    Hold,
    /// The annotation by which Istio makes its proxy a native sidecar.
    Istio,
    /// The shim, as a native sidecar.
    Native,
    /// The shim, as the parent of pilot-agent.
    Proxy,
    /// The shim, which looks at no process, and waits for the kubelet's report.
    Status,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 6] = [Self::Off, Self::Hold, Self::Istio, Self::Native, Self::Proxy, Self::Status];

    /// Returns the name in annotations, labels, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Hold => "hold",
            Self::Istio => "istio",
            Self::Native => "native",
            Self::Proxy => "proxy",
            Self::Status => "status",
        }
    }

    /// Returns true if a shim is in the pod.
    #[must_use]
    pub fn has_shim(self) -> bool {
        matches!(self, Self::Native | Self::Proxy | Self::Status)
    }
}
