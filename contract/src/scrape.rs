//! Which ports pilot-agent scrapes as an application's. It exits for any other.

use crate::names::DEFAULT_STATUS_PORT;

/// Istio's own ports (`istioReservedPorts` in `pilot/cmd/pilot-agent/status/server.go`).
const RESERVED: [u16; 9] = [15_000, 15_001, 15_004, 15_006, 15_008, DEFAULT_STATUS_PORT, 15_021, 15_053, 15_090];

/// Is why a port is not scraped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unscraped {
    /// It is not a port number.
    NotANumber,
    /// It is one of Istio's own.
    Reserved,
}

/// Returns the port that the annotation `prometheus.io/port` gives, 80 without it.
pub fn port(given: Option<&str>) -> Result<u16, Unscraped> {
    match given.map_or(Ok(80), str::parse) {
        Err(_) | Ok(0) => Err(Unscraped::NotANumber),
        Ok(port) if RESERVED.contains(&port) => Err(Unscraped::Reserved),
        Ok(port) => Ok(port),
    }
}
