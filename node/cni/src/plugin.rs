//! What each command of CNI does. DEL always succeeds, so that no pod stays in Terminating because of this plugin.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent::{self, CallError};
use crate::input::{Configuration, Environment, sandbox};
use crate::protocol::Request;

/// The versions of the specification whose results this plugin hands on.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// By the specification: try again later.
const TRY_AGAIN_LATER: u32 = 11;
/// By the specification, codes of a plugin's own begin at 100.
const INVALID_INPUT: u32 = 100;
const REJECTED: u32 = 101;

/// How long each command may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Until the proxy is ready. The kubelet allows 4 minutes for the whole sandbox.
    pub add: Duration,
    /// Until the agent has removed the proxy; after that a mark is left.
    pub delete: Duration,
    /// Until the agent has said whether the proxy is ready.
    pub check: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { add: Duration::from_secs(90), delete: Duration::from_secs(20), check: Duration::from_secs(10) }
    }
}

/// What a failed call prints.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    code: u32,
    message: String,
}

impl Failure {
    /// As the specification wants an error.
    #[must_use]
    pub fn to_json(&self) -> String {
        json!({"cniVersion": "1.0.0", "code": self.code, "msg": format!("istio-aux: {}", self.message)}).to_string()
    }

    fn input(message: impl Into<String>) -> Self {
        Self { code: INVALID_INPUT, message: message.into() }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(message) => Self { code: TRY_AGAIN_LATER, message },
            CallError::Rejected(message) => Self { code: REJECTED, message },
        }
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
        other => Err(Failure::input(format!("CNI_COMMAND {other:?} is none that this plugin knows"))),
    }
}

fn configuration(input: &str) -> Result<Configuration, Failure> {
    serde_json::from_str(input).map_err(|error| Failure::input(format!("the network configuration: {error}")))
}

fn add(environment: &Environment, configuration: &Configuration, timeout: Duration) -> Result<String, Failure> {
    let sandbox = sandbox(environment, configuration).map_err(Failure::input)?;
    agent::call_until(&socket(&configuration.run_dir), &Request::Add(sandbox), Instant::now() + timeout)?;
    Ok(configuration.prev_result.as_ref().map(|result| result.get().to_owned()).unwrap_or_default())
}

fn check(environment: &Environment, configuration: &Configuration, timeout: Duration) -> Result<String, Failure> {
    let id = environment.sandbox_id().map_err(Failure::input)?;
    agent::call(&socket(&configuration.run_dir), &Request::Check { id }, Instant::now() + timeout)?;
    Ok(String::new())
}

/// Leaves a mark where the agent does not respond: it removes the proxy when it is back.
fn delete(run_dir: &Path, id: String, timeout: Duration) {
    let mark = run_dir.join("gone").join(&id);
    if let Err(error) = agent::call(&socket(run_dir), &Request::Delete { id }, Instant::now() + timeout)
        && let Err(cause) = leave(&mark)
    {
        eprintln!("istio-aux: {error:?}, and {} cannot be written: {cause}", mark.display());
    }
}

fn leave(mark: &Path) -> io::Result<()> {
    if let Some(directory) = mark.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(mark, "")
}

fn socket(run_dir: &Path) -> std::path::PathBuf {
    run_dir.join("node.sock")
}
