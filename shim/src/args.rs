//! The command line: reading it, and refusing what makes no sense in one line.

use std::ffi::OsString;
use std::path::PathBuf;

use contract::args::{
    AWAIT, CONTAINER_POLICY, INSTALL, LOCKS, NAME, OUTLIVE, PROXY, QUIT, RESTART_POLICY, RETRY_WINDOW, STATE,
    STATUS_PORT, SUPERVISE, WATCH, WRAP, Watch, Wrap,
};
use contract::endpoint::NotLoopbackHttp;
use contract::policy::{ContainerPolicy, RestartPolicy};
use lexopt::{Arg, Parser, ValueExt};

const HELP: &str = "\
aux-shim ends a pod's Istio proxy when the containers it served have finished.

usage: aux-shim watch --await NAME [--await NAME …] --restart-policy Never|OnFailure [options]
       aux-shim supervise --await NAME … --restart-policy Never|OnFailure [options] -- COMMAND …
       aux-shim wrap --name NAME --locks FOLDER -- COMMAND …
       aux-shim install FOLDER

watch      watches the containers in a pod with shareProcessNamespace: true
supervise  the same, as the parent of the proxy's COMMAND, whose exit status it passes on
wrap       the parent of a container's COMMAND, whose exit status it passes on; supervise --locks watches it,
           in a pod whose containers do not share a PID namespace
install    copies this program into FOLDER

options of watch and supervise:
  --await NAME             a container to wait for; once for each
  --outlive NAME           a container not to wait for, but to outlive; once for each
  --restart-policy POLICY  the pod's restart policy: Never or OnFailure
  --container-policy NAME=POLICY[;ACTION:in|not-in:CODES]…
                           the policy of a container that has its own; ACTION is restart or restart-all
  --proxy NAME             the proxy's container (istio-proxy)
  --status-port PORT       pilot-agent's port on localhost (15020); 0 where it is off: Envoy's admin port is asked
  --quit URL               http://127.0.0.1:PORT/PATH to POST to before the proxy is asked; once for each
  --state FILE             where what was seen is remembered, for a shim that is started again
  --retry-window SECONDS   how long a container that ended with an unknown code is expected back (kernels before
                           6.15 do not tell codes; without it: twice the kubelet's back-off, and a minute)
  --locks FOLDER           supervise: where wrapped containers say how they are

options of wrap:
  --name NAME              the container's name
  --locks FOLDER           where it says how it is

It asks nothing of the Kubernetes API. Exit status: of watch always 0; of supervise and wrap their COMMAND's,
127 where there is no such command, 126 where it cannot be run; 2 for arguments that make no sense.

example: aux-shim watch --await main --await metrics --restart-policy OnFailure
example: aux-shim supervise --await main --restart-policy Never -- /usr/local/bin/pilot-agent proxy sidecar
example: aux-shim wrap --name main --locks /istio-aux-state -- python3 train.py
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Watch(Watch),
    /// Watch as the parent of this command.
    Supervise(Watch, Vec<OsString>),
    /// Be the parent of this command.
    Wrap(Wrap, Vec<OsString>),
    /// Copy this program into a folder.
    Install(PathBuf),
    /// Print this text and end: help, version.
    Show(String),
}

/// The command line makes no sense; one line that says why and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no command: try aux-shim watch --await NAME --restart-policy Never, or --help")]
    NoCommand,
    #[error("unknown command {0:?}: there are watch, supervise, wrap and install; see --help")]
    UnknownCommand(String),
    #[error("{command}: {reason}")]
    Incomplete { command: &'static str, reason: &'static str },
    #[error("--{option}: {reason}")]
    Option { option: &'static str, reason: String },
    #[error("{0}; see --help")]
    Unusable(#[from] lexopt::Error),
}

/// Reads a command line, its first word being the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, Error> {
    let mut parser = Parser::from_iter(words);
    match parser.next()? {
        None => Err(Error::NoCommand),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(help()),
        Some(Arg::Long("version") | Arg::Short('V')) => {
            Ok(Command::Show(format!("aux-shim {}\n", env!("CARGO_PKG_VERSION"))))
        }
        Some(Arg::Value(word)) => match word.to_str() {
            Some(WATCH) => watch(parser),
            Some(SUPERVISE) => supervise(parser),
            Some(WRAP) => wrap(parser),
            Some(INSTALL) => install(parser),
            _ => Err(Error::UnknownCommand(word.to_string_lossy().into_owned())),
        },
        Some(other) => Err(other.unexpected().into()),
    }
}

fn help() -> Command {
    Command::Show(HELP.to_owned())
}

fn watch(mut parser: Parser) -> Result<Command, Error> {
    let mut options = WatchOptions::new();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(help()),
            Arg::Long(option) => {
                let option = option.to_owned();
                options.read(&option, &mut parser)?;
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let watch = options.finish()?;
    if watch.locks.is_some() {
        return Err(wrong(LOCKS, "is for supervise and wrap"));
    }
    Ok(Command::Watch(watch))
}

fn supervise(mut parser: Parser) -> Result<Command, Error> {
    let mut options = WatchOptions::new();
    let command = loop {
        match parser.next()? {
            Some(Arg::Long("help") | Arg::Short('h')) => return Ok(help()),
            Some(Arg::Long(option)) => {
                let option = option.to_owned();
                options.read(&option, &mut parser)?;
            }
            Some(Arg::Value(first)) => break command_from(first, &mut parser)?,
            Some(other) => return Err(other.unexpected().into()),
            None => return Err(nothing_to_run(SUPERVISE)),
        }
    };
    Ok(Command::Supervise(options.finish()?, command))
}

fn wrap(mut parser: Parser) -> Result<Command, Error> {
    let (mut container, mut locks) = (None, None);
    let command = loop {
        match parser.next()? {
            Some(Arg::Long("help") | Arg::Short('h')) => return Ok(help()),
            Some(Arg::Long(NAME)) => container = Some(name(NAME, &mut parser)?),
            Some(Arg::Long(LOCKS)) => locks = Some(name(LOCKS, &mut parser)?),
            Some(Arg::Value(first)) => break command_from(first, &mut parser)?,
            Some(other) => return Err(other.unexpected().into()),
            None => return Err(nothing_to_run(WRAP)),
        }
    };
    let name = container.ok_or_else(|| wrong(NAME, "is missing; it takes the container's name"))?;
    if name.contains('/') {
        return Err(wrong(NAME, format!("takes a container's name, and was given {name:?}")));
    }
    let locks = locks.ok_or_else(|| wrong(LOCKS, "is missing; it takes a folder that the pod's containers share"))?;
    Ok(Command::Wrap(Wrap { name, locks }, command))
}

fn install(mut parser: Parser) -> Result<Command, Error> {
    match parser.next()? {
        Some(Arg::Value(folder)) => Ok(Command::Install(folder.into())),
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(help()),
        Some(other) => Err(other.unexpected().into()),
        None => Err(Error::Incomplete { command: INSTALL, reason: "takes a folder" }),
    }
}

/// The command at the end of the line, whose first word has been read already.
fn command_from(first: OsString, parser: &mut Parser) -> Result<Vec<OsString>, Error> {
    Ok(std::iter::once(first).chain(parser.raw_args()?).collect())
}

fn nothing_to_run(command: &'static str) -> Error {
    Error::Incomplete { command, reason: "no command to run; put it at the end, after --" }
}

/// The options that say what to watch.
struct WatchOptions {
    watch: Watch,
    policy: Option<RestartPolicy>,
}

impl WatchOptions {
    fn new() -> Self {
        Self { watch: Watch::new(Vec::new(), RestartPolicy::Never), policy: None }
    }

    /// Reads an option's value.
    fn read(&mut self, option: &str, parser: &mut Parser) -> Result<(), Error> {
        let watch = &mut self.watch;
        match option {
            AWAIT => watch.awaited.push(name(AWAIT, parser)?),
            OUTLIVE => watch.outlived.push(name(OUTLIVE, parser)?),
            PROXY => watch.proxy = name(PROXY, parser)?,
            RESTART_POLICY => self.policy = Some(pod_policy(parser)?),
            CONTAINER_POLICY => watch.container_policies.push(container_policy(parser)?),
            STATUS_PORT => watch.status_port = parsed(STATUS_PORT, parser, "takes a port, 0 to 65535")?,
            QUIT => watch.quit.push(parsed(QUIT, parser, &NotLoopbackHttp.to_string())?),
            STATE => watch.state = Some(name(STATE, parser)?),
            RETRY_WINDOW => watch.retry_window = Some(parsed(RETRY_WINDOW, parser, "takes seconds")?),
            LOCKS => watch.locks = Some(name(LOCKS, parser)?),
            other => return Err(Arg::Long(other).unexpected().into()),
        }
        Ok(())
    }

    fn finish(self) -> Result<Watch, Error> {
        let Self { mut watch, policy } = self;
        watch.restart_policy =
            policy.ok_or_else(|| wrong(RESTART_POLICY, "is missing; it takes Never or OnFailure"))?;
        refuse_contradictions(&watch)?;
        Ok(watch)
    }
}

fn pod_policy(parser: &mut Parser) -> Result<RestartPolicy, Error> {
    let takes = "takes Never or OnFailure";
    match parsed(RESTART_POLICY, parser, takes)? {
        RestartPolicy::Always => Err(wrong(RESTART_POLICY, format!("{takes}, and was given \"Always\""))),
        policy => Ok(policy),
    }
}

fn container_policy(parser: &mut Parser) -> Result<(String, ContainerPolicy), Error> {
    let text = parser.value()?.string()?;
    let refuse = |reason: &str| wrong(CONTAINER_POLICY, format!("{reason}, and was given {text:?}"));
    let (name, policy) = text.split_once('=').ok_or_else(|| refuse("takes NAME=POLICY"))?;
    let policy = policy.parse().map_err(|error: contract::policy::Unreadable| refuse(&error.to_string()))?;
    Ok((name.to_owned(), policy))
}

fn refuse_contradictions(watch: &Watch) -> Result<(), Error> {
    if watch.awaited.is_empty() {
        return Err(wrong(AWAIT, "is missing; name at least one container"));
    }
    let mut seen = vec![watch.proxy.as_str()];
    for (option, name) in
        watch.awaited.iter().map(|name| (AWAIT, name)).chain(watch.outlived.iter().map(|name| (OUTLIVE, name)))
    {
        if seen.contains(&name.as_str()) {
            return Err(wrong(option, format!("{name:?} is named twice, or is the proxy")));
        }
        seen.push(name);
    }
    match watch.container_policies.iter().find(|(name, _)| !seen.contains(&name.as_str())) {
        Some((name, _)) => Err(wrong(CONTAINER_POLICY, format!("{name:?} is neither awaited, outlived nor the proxy"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, Error> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn what_the_webhook_writes_is_what_the_shim_reads() {
        let mut watch = Watch::new(vec!["main".into(), "metrics".into()], RestartPolicy::OnFailure);
        watch.outlived.push("cloud-sql-proxy".into());
        watch.status_port = 15_999;
        watch.container_policies.push(("main".into(), "Never;restart:in:42".parse().unwrap()));
        watch.quit.push("http://127.0.0.1:9091/quitquitquit".parse().unwrap());
        watch.state = Some("/state/seen".into());
        watch.retry_window = Some(30);
        let words = std::iter::once("aux-shim".to_owned()).chain(watch.to_args()).map(OsString::from);
        assert_eq!(parse(words).unwrap(), Command::Watch(watch.clone()));
        watch.locks = Some("/locks".into());
        let command = ["pilot-agent", "proxy", "--await=x", "--", "-h"].map(OsString::from);
        let words = watch.to_supervising_command("aux-shim").into_iter().map(OsString::from).chain(command.clone());
        assert_eq!(parse(words).unwrap(), Command::Supervise(watch, command.to_vec()));
        let wrap = Wrap { name: "main".into(), locks: "/locks".into() };
        let words = wrap.to_command("aux-shim").into_iter().map(OsString::from).chain(command.clone());
        assert_eq!(parse(words).unwrap(), Command::Wrap(wrap, command.to_vec()));
    }

    #[test]
    fn wrong_arguments_are_named_in_one_line() {
        let cases = [
            ("aux-shim", "no command: try aux-shim watch --await NAME --restart-policy Never, or --help"),
            ("aux-shim sleep", "unknown command \"sleep\": there are watch, supervise, wrap and install; see --help"),
            ("aux-shim watch", "--restart-policy: is missing; it takes Never or OnFailure"),
            ("aux-shim watch --restart-policy Never", "--await: is missing; name at least one container"),
            (
                "aux-shim watch --await a --restart-policy Always",
                "--restart-policy: takes Never or OnFailure, and was given \"Always\"",
            ),
            (
                "aux-shim watch --await a --restart-policy Never --status-port 70000",
                "--status-port: takes a port, 0 to 65535, and was given \"70000\"",
            ),
            (
                "aux-shim watch --await a --await a --restart-policy Never",
                "--await: \"a\" is named twice, or is the proxy",
            ),
            (
                "aux-shim watch --await a --outlive istio-proxy --restart-policy Never",
                "--outlive: \"istio-proxy\" is named twice, or is the proxy",
            ),
            ("aux-shim watch --await= --restart-policy Never", "--await: takes a name, and was given \"\""),
            (
                "aux-shim watch --await a --restart-policy Never --quit http://10.0.0.1:80/quit",
                "--quit: takes http://127.0.0.1:PORT/PATH: plain HTTP, on loopback, with its port, and was given \"http://10.0.0.1:80/quit\"",
            ),
            (
                "aux-shim watch --await a --restart-policy Never --container-policy b=Never",
                "--container-policy: \"b\" is neither awaited, outlived nor the proxy",
            ),
            (
                "aux-shim watch --await a --restart-policy Never --container-policy a=Sometimes",
                "--container-policy: takes Always, Never or OnFailure, and rules like ;restart:in:42,43, and was given \"a=Sometimes\"",
            ),
            (
                "aux-shim watch --await a --restart-policy Never --retry-window soon",
                "--retry-window: takes seconds, and was given \"soon\"",
            ),
            ("aux-shim watch --await", "missing argument for option '--await'; see --help"),
            ("aux-shim watch --no-such", "invalid option '--no-such'; see --help"),
            ("aux-shim watch main", "unexpected argument \"main\"; see --help"),
        ];
        assert_refused(&cases);
    }

    #[test]
    fn wrong_arguments_of_commands_with_a_command_are_named_in_one_line() {
        let cases = [
            ("aux-shim watch --await a --restart-policy Never --locks /x", "--locks: is for supervise and wrap"),
            (
                "aux-shim supervise --await a --restart-policy Never",
                "supervise: no command to run; put it at the end, after --",
            ),
            (
                "aux-shim supervise --await a --restart-policy Never --",
                "supervise: no command to run; put it at the end, after --",
            ),
            ("aux-shim supervise --no-such -- agent", "invalid option '--no-such'; see --help"),
            ("aux-shim supervise -x -- agent", "invalid option '-x'; see --help"),
            ("aux-shim wrap --name a --locks /x", "wrap: no command to run; put it at the end, after --"),
            ("aux-shim wrap --name a --other", "invalid option '--other'; see --help"),
            ("aux-shim wrap --locks /x -- true", "--name: is missing; it takes the container's name"),
            (
                "aux-shim wrap --name a -- true",
                "--locks: is missing; it takes a folder that the pod's containers share",
            ),
            (
                "aux-shim wrap --name ../a --locks /x -- true",
                "--name: takes a container's name, and was given \"../a\"",
            ),
            ("aux-shim install", "install: takes a folder"),
        ];
        assert_refused(&cases);
    }

    fn assert_refused(cases: &[(&str, &str)]) {
        for (line, message) in cases {
            assert_eq!(parse_line(line).unwrap_err().to_string(), *message, "{line}");
        }
    }

    #[test]
    fn help_shows_examples_that_parse() {
        let Command::Show(help) = parse_line("aux-shim --help").unwrap() else { panic!("no help") };
        let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("example: ")).collect();
        assert_eq!(examples.len(), 3);
        for example in examples {
            assert!(!matches!(parse_line(example), Err(_) | Ok(Command::Show(_))), "{example}");
        }
    }
}
