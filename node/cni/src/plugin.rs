//! The commands of CNI. DEL always succeeds, so that no pod stays in Terminating because of this plugin.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent;
use crate::failure::Failure;
use crate::input::{Configuration, Environment, sandbox};
use crate::protocol::{self, Request};

/// Lists the versions of the specification whose results this plugin passes on.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Limits the time of each command.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Waits for the proxy to be ready. The kubelet allows 4 minutes for the whole sandbox.
    pub add: Duration,
    /// Waits for the proxy's removal; then a tombstone is written.
    pub delete: Duration,
    /// Waits for the response whether the proxy is ready.
    pub check: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { add: Duration::from_secs(90), delete: Duration::from_secs(20), check: Duration::from_secs(10) }
    }
}

/// Carries out one call, and returns what goes to standard output.
pub fn run(environment: &Environment, input: &str, timeouts: Timeouts) -> Result<String, Failure> {
    match environment.command.as_str() {
        "VERSION" => Ok(json!({"cniVersion": "1.0.0", "supportedVersions": VERSIONS}).to_string()),
        "ADD" => add(environment, &configuration(input)?, timeouts.add),
        "CHECK" => check(environment, &configuration(input)?, timeouts.check),
        "DEL" => {
            if let (Ok(configuration), Ok(id)) = (configuration(input), environment.sandbox_id()) {
                delete(&configuration.run_dir, id, timeouts.delete);
            }
            Ok(String::new())
        }
        other => Err(Failure::Input(format!("unknown CNI_COMMAND {other:?}"))),
    }
}

fn configuration(input: &str) -> Result<Configuration, Failure> {
    serde_json::from_str(input).map_err(|error| Failure::Input(format!("the network configuration: {error}")))
}

fn add(environment: &Environment, configuration: &Configuration, timeout: Duration) -> Result<String, Failure> {
    let sandbox = sandbox(environment, configuration)?;
    agent::call_until(&protocol::socket(&configuration.run_dir), &Request::Add(sandbox), Instant::now() + timeout)?;
    Ok(configuration.prev_result.as_ref().map(|result| result.get().to_owned()).unwrap_or_default())
}

fn check(environment: &Environment, configuration: &Configuration, timeout: Duration) -> Result<String, Failure> {
    let id = environment.sandbox_id()?;
    agent::call(&protocol::socket(&configuration.run_dir), &Request::Check { id }, Instant::now() + timeout)?;
    Ok(String::new())
}

/// Writes a tombstone where the agent does not respond: it removes the proxy when it is back.
fn delete(run_dir: &Path, id: String, timeout: Duration) {
    let tombstone = protocol::tombstones(run_dir).join(&id);
    if let Err(error) = agent::call(&protocol::socket(run_dir), &Request::Delete { id }, Instant::now() + timeout)
        && let Err(cause) = write_tombstone(&tombstone)
    {
        eprintln!("istio-aux: {error}, and {} cannot be written: {cause}", tombstone.display());
    }
}

fn write_tombstone(tombstone: &Path) -> io::Result<()> {
    if let Some(directory) = tombstone.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(tombstone, "")
}
