//! The commands of CNI. DEL always succeeds, so that no pod stays in Terminating because of this plugin.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent;
use crate::failure::Failure;
use crate::input::{Configuration, Environment, sandbox};
use crate::protocol::{self, Request};

/// Lists the versions of the specification whose results this plugin passes on.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Returns the time that a command may take.
#[must_use]
pub fn timeout(command: &str) -> Duration {
    Duration::from_secs(match command {
        // The kubelet allows 4 minutes for the whole sandbox. The agent starts proxies in turn.
        "ADD" => 200,
        // Then a tombstone is written.
        "DEL" => 20,
        _ => 10,
    })
}

/// Carries out one call in this time, and returns what goes to standard output.
pub fn run(environment: &Environment, input: &str, timeout: Duration) -> Result<String, Failure> {
    let deadline = Instant::now() + timeout;
    match environment.command.as_str() {
        "VERSION" => Ok(json!({"cniVersion": "1.0.0", "supportedVersions": VERSIONS}).to_string()),
        "ADD" => add(environment, &configuration(input)?, deadline),
        "CHECK" => check(environment, &configuration(input)?, deadline),
        "STATUS" => status(&configuration(input)?, deadline),
        "GC" => collect(&configuration(input)?, deadline),
        "DEL" => {
            if let (Ok(configuration), Ok(id)) = (configuration(input), environment.sandbox_id()) {
                delete(&configuration.run_dir, id, deadline);
            }
            Ok(String::new())
        }
        other => Err(Failure::Input(format!("unknown CNI_COMMAND {other:?}"))),
    }
}

fn configuration(input: &str) -> Result<Configuration, Failure> {
    serde_json::from_str(input).map_err(|error| Failure::Input(format!("the network configuration: {error}")))
}

fn add(environment: &Environment, configuration: &Configuration, deadline: Instant) -> Result<String, Failure> {
    let sandbox = sandbox(environment, configuration)?;
    agent::call_until(&protocol::socket(&configuration.run_dir), &Request::Add(Box::new(sandbox)), deadline)?;
    Ok(configuration.prev_result.as_ref().map(|result| result.get().to_owned()).unwrap_or_default())
}

fn check(environment: &Environment, configuration: &Configuration, deadline: Instant) -> Result<String, Failure> {
    let id = environment.sandbox_id()?;
    agent::call(&protocol::socket(&configuration.run_dir), &Request::Check { id }, deadline)?;
    Ok(String::new())
}

fn status(configuration: &Configuration, deadline: Instant) -> Result<String, Failure> {
    let response = agent::call(&protocol::socket(&configuration.run_dir), &Request::Status, deadline);
    response.map_err(|failure| Failure::NotAvailable(failure.to_string()))?;
    Ok(String::new())
}

/// The agent asks the runtime itself, so the attachments of the request are not needed.
fn collect(configuration: &Configuration, deadline: Instant) -> Result<String, Failure> {
    agent::call(&protocol::socket(&configuration.run_dir), &Request::Collect, deadline)?;
    Ok(String::new())
}

/// Writes a tombstone where the agent does not respond: it removes the proxy when it is back.
fn delete(run_dir: &Path, id: String, deadline: Instant) {
    let directory = protocol::tombstones(run_dir);
    let tombstone = directory.join(&id);
    if let Err(error) = agent::call(&protocol::socket(run_dir), &Request::Delete { id }, deadline)
        && let Err(cause) = fs::create_dir_all(directory).and_then(|()| fs::write(&tombstone, ""))
    {
        eprintln!("istio-aux: {error}, and {} cannot be written: {cause}", tombstone.display());
    }
}
