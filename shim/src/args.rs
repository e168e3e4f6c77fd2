//! Parses the command line, and rejects invalid arguments in one line.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;

use contract::args::{
    ALL_MAY_RESTART, ANNOTATIONS, ARGUMENT, AWAIT, INSTALL, MAY_RESTART, PROXY, QUIT, REPORT_ONLY, RESTART_POLICY,
    START_AFTER, STATUS_PORT, SUPERVISE, StartAfterArgs, WATCH, WatchArgs,
};
use contract::endpoint::ParseEndpointError;
use contract::policy::RestartPolicy;
use lexopt::{Arg, Parser, ValueExt};

const HELP: &str = "\
aux-shim ends a pod's Istio proxy when the containers it served have finished.

usage: aux-shim watch --await NAME [--await NAME …] --restart-policy Never|OnFailure [options]
       aux-shim supervise --await NAME … --restart-policy Never|OnFailure [options] -- COMMAND …
       aux-shim start-after --argument ARGUMENT -- COMMAND …
       aux-shim install DIRECTORY

watch      watches the containers of a pod, and asks its proxy to quit when those to wait for have ended for good: as it sees
           itself where they share a PID namespace, and otherwise by the kubelet's report
supervise  the same, as the parent of the proxy's COMMAND, whose exit status it passes on
start-after
           waits until a container of the pod has a process with this ARGUMENT, and that is idle; then becomes COMMAND
install    copies this program into DIRECTORY

options of watch and supervise:
  --await NAME             a container to wait for; repeatable
  --may-restart NAME       a container that may restart by other rules than this policy; repeatable
  --restart-policy POLICY  the pod's restart policy: Never or OnFailure
  --proxy NAME             the proxy's container (istio-proxy)
  --status-port PORT       pilot-agent's port on localhost (15020); 0 if it is disabled: Envoy's admin port is used
  --quit URL               http://127.0.0.1:PORT/PATH to POST to before the proxy is asked to quit; repeatable
  --annotations FILE       the pod's annotations as the downward API writes them: istio-aux.io/ended is the kubelet's report
  --report-only            reads no process: only the kubelet's report ends the proxy
  --all-may-restart        another container's exit may restart all containers: ignore a report from before this
                           process started

option of start-after:
  --argument ARGUMENT      one argument of the other container's command, as a whole

It uses no Kubernetes API. watch runs until SIGTERM: the kubelet ends it after the pod's regular containers.
Exit status: of watch always 0; of supervise and start-after their COMMAND's, 127
if it does not exist, 126 if it cannot be run; 2 for invalid arguments.

example: aux-shim watch --await main --await metrics --restart-policy OnFailure
example: aux-shim supervise --await main --restart-policy Never -- /usr/local/bin/pilot-agent proxy sidecar
example: aux-shim start-after --argument=-s-db -- python3 train.py
";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Watch(WatchArgs),
    /// Watches as the parent of this command.
    Supervise(WatchArgs, Vec<OsString>),
    /// Becomes this command once another container is idle.
    StartAfter(StartAfterArgs, Vec<OsString>),
    /// Copies this program into a directory.
    Install(PathBuf),
    /// Prints this text, help or version, and exits.
    Show(String),
}

/// Rejects a command line, in one line that says why and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no command: try aux-shim watch --await NAME --restart-policy Never, or --help")]
    NoCommand,
    #[error("unknown command {0:?}: there are watch, supervise, start-after and install; see --help")]
    UnknownCommand(String),
    #[error("{command}: {reason}")]
    Incomplete { command: &'static str, reason: &'static str },
    #[error("--{option}: {reason}")]
    Option { option: &'static str, reason: String },
    #[error("{0}; see --help")]
    Unusable(#[from] lexopt::Error),
}

/// Parses a command line whose first word is the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, Error> {
    let mut parser = Parser::from_iter(words);
    match parser.next()? {
        None => Err(Error::NoCommand),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(help()),
        Some(Arg::Long("version") | Arg::Short('V')) => {
            Ok(Command::Show(format!("aux-shim {}\n", env!("CARGO_PKG_VERSION"))))
        }
        Some(Arg::Value(word)) => match word.to_str() {
            Some(WATCH) => watch(parser, false),
            Some(SUPERVISE) => watch(parser, true),
            Some(START_AFTER) => start_after(parser),
            Some(INSTALL) => install(parser),
            _ => Err(Error::UnknownCommand(word.to_string_lossy().into_owned())),
        },
        Some(other) => Err(other.unexpected().into()),
    }
}

fn help() -> Command {
    Command::Show(HELP.to_owned())
}

/// Parses the options of `watch`, or those of `supervise` and its command.
fn watch(mut parser: Parser, takes_command: bool) -> Result<Command, Error> {
    let (mut watch, mut policy, mut command) = (WatchArgs::new(Vec::new(), RestartPolicy::Never), None, None);
    while command.is_none()
        && let Some(arg) = parser.next()?
    {
        match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(help()),
            Arg::Long(RESTART_POLICY) => policy = Some(pod_policy(&mut parser)?),
            Arg::Long(option) => {
                let option = option.to_owned();
                read_option(&option, &mut watch, &mut parser)?;
            }
            Arg::Value(first) if takes_command => command = Some(command_from(first, &mut parser)?),
            other => return Err(other.unexpected().into()),
        }
    }
    if takes_command && command.is_none() {
        return Err(nothing_to_run(SUPERVISE));
    }
    watch.restart_policy = policy.ok_or_else(|| wrong(RESTART_POLICY, "is missing; it takes Never or OnFailure"))?;
    reject_contradictions(&watch)?;
    match command {
        None => Ok(Command::Watch(watch)),
        Some(command) => Ok(Command::Supervise(watch, command)),
    }
}

fn start_after(mut parser: Parser) -> Result<Command, Error> {
    let mut argument = None;
    loop {
        match parser.next()? {
            Some(Arg::Long("help") | Arg::Short('h')) => return Ok(help()),
            Some(Arg::Long(ARGUMENT)) => argument = Some(name(ARGUMENT, &mut parser)?),
            Some(Arg::Value(first)) => {
                let missing = || wrong(ARGUMENT, "is missing; it takes an argument of the other container");
                let arguments = StartAfterArgs { argument: argument.ok_or_else(missing)? };
                return Ok(Command::StartAfter(arguments, command_from(first, &mut parser)?));
            }
            Some(other) => return Err(other.unexpected().into()),
            None => return Err(nothing_to_run(START_AFTER)),
        }
    }
}

fn install(mut parser: Parser) -> Result<Command, Error> {
    match parser.next()? {
        Some(Arg::Value(directory)) => Ok(Command::Install(directory.into())),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(help()),
        Some(other) => Err(other.unexpected().into()),
        None => Err(Error::Incomplete { command: INSTALL, reason: "takes a directory" }),
    }
}

/// Reads the rest of the command at the end of the line, after its first word.
fn command_from(first: OsString, parser: &mut Parser) -> Result<Vec<OsString>, Error> {
    Ok(std::iter::once(first).chain(parser.raw_args()?).collect())
}

fn nothing_to_run(command: &'static str) -> Error {
    Error::Incomplete { command, reason: "no command to run; put it at the end, after --" }
}

/// Reads the value of an option of `watch` and `supervise`, but the policy.
fn read_option(option: &str, watch: &mut WatchArgs, parser: &mut Parser) -> Result<(), Error> {
    match option {
        AWAIT => watch.awaited.push(name(AWAIT, parser)?),
        MAY_RESTART => watch.may_restart.push(name(MAY_RESTART, parser)?),
        PROXY => watch.proxy = name(PROXY, parser)?,
        STATUS_PORT => watch.status_port = parsed(STATUS_PORT, parser, "takes a port, 0 to 65535")?,
        QUIT => watch.quit.push(parsed(QUIT, parser, &ParseEndpointError.to_string())?),
        ANNOTATIONS => watch.annotations = Some(name(ANNOTATIONS, parser)?),
        REPORT_ONLY => watch.report_only = true,
        ALL_MAY_RESTART => watch.all_may_restart = true,
        other => return Err(Arg::Long(other).unexpected().into()),
    }
    Ok(())
}

fn pod_policy(parser: &mut Parser) -> Result<RestartPolicy, Error> {
    let takes = "takes Never or OnFailure";
    match parsed(RESTART_POLICY, parser, takes)? {
        RestartPolicy::Always => Err(wrong(RESTART_POLICY, format!("{takes}, and was given \"Always\""))),
        policy => Ok(policy),
    }
}

fn reject_contradictions(watch: &WatchArgs) -> Result<(), Error> {
    if watch.awaited.is_empty() {
        return Err(wrong(AWAIT, "is missing; name at least one container"));
    }
    let mut seen = vec![watch.proxy.as_str()];
    for name in &watch.awaited {
        if seen.contains(&name.as_str()) {
            return Err(wrong(AWAIT, format!("{name:?} is named twice, or is the proxy")));
        }
        seen.push(name);
    }
    match watch.may_restart.iter().find(|name| !seen.contains(&name.as_str())) {
        Some(name) => Err(wrong(MAY_RESTART, format!("{name:?} is neither awaited nor the proxy"))),
        None => Ok(()),
    }
}

fn name(option: &'static str, parser: &mut Parser) -> Result<String, Error> {
    let text = parser.value()?.string()?;
    if text.is_empty() { Err(wrong(option, "takes a name, and was given \"\"")) } else { Ok(text) }
}

fn parsed<T: std::str::FromStr>(option: &'static str, parser: &mut Parser, takes: &str) -> Result<T, Error> {
    let text = parser.value()?.string()?;
    text.parse().map_err(|_| wrong(option, format!("{takes}, and was given {text:?}")))
}

fn wrong(option: &'static str, reason: impl Into<String>) -> Error {
    Error::Option { option, reason: reason.into() }
}
