//! The command line: reading it, and refusing what makes no sense in one line.

use std::ffi::OsString;

use contract::args::{
    AWAIT, CONTAINER_POLICY, OUTLIVE, PROXY, QUIT, RESTART_POLICY, RETRY_WINDOW, STATE, STATUS_PORT, WATCH, Watch,
};
use contract::policy::{ContainerPolicy, RestartPolicy};
use lexopt::{Arg, Parser, ValueExt};

const HELP: &str = "\
aux-shim ends a pod's Istio proxy when the containers it served have finished.

usage: aux-shim watch --await NAME [--await NAME …] --restart-policy Never|OnFailure [options]

options of watch:
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

It needs a pod with shareProcessNamespace: true. It asks nothing of the Kubernetes API.

example: aux-shim watch --await main --await metrics --restart-policy OnFailure
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Watch(Watch),
    /// Print this text and end: help, version.
    Show(String),
}

/// The command line makes no sense; one line that says why and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no command: try aux-shim watch --await NAME --restart-policy Never, or --help")]
    NoCommand,
    #[error("unknown command {0:?}: there is watch; see --help")]
    UnknownCommand(String),
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
        Some(Arg::Long("help") | Arg::Short('h')) => Ok(Command::Show(HELP.to_owned())),
        Some(Arg::Long("version") | Arg::Short('V')) => {
            Ok(Command::Show(format!("aux-shim {}\n", env!("CARGO_PKG_VERSION"))))
        }
        Some(Arg::Value(word)) if word == WATCH => watch(parser),
        Some(Arg::Value(word)) => Err(Error::UnknownCommand(word.to_string_lossy().into_owned())),
        Some(other) => Err(other.unexpected().into()),
    }
}

fn watch(mut parser: Parser) -> Result<Command, Error> {
    let mut watch = Watch::new(Vec::new(), RestartPolicy::Never);
    let mut policy = None;
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long(AWAIT) => watch.awaited.push(name(AWAIT, &mut parser)?),
            Arg::Long(OUTLIVE) => watch.outlived.push(name(OUTLIVE, &mut parser)?),
            Arg::Long(PROXY) => watch.proxy = name(PROXY, &mut parser)?,
            Arg::Long(RESTART_POLICY) => policy = Some(pod_policy(&mut parser)?),
            Arg::Long(CONTAINER_POLICY) => watch.container_policies.push(container_policy(&mut parser)?),
            Arg::Long(STATUS_PORT) => watch.status_port = parsed(STATUS_PORT, &mut parser, "takes a port, 0 to 65535")?,
            Arg::Long(QUIT) => {
                let takes = "takes http://127.0.0.1:PORT/PATH: plain HTTP, on loopback, with its port";
                watch.quit.push(parsed(QUIT, &mut parser, takes)?);
            }
            Arg::Long(STATE) => watch.state = Some(name(STATE, &mut parser)?),
            Arg::Long(RETRY_WINDOW) => watch.retry_window = Some(parsed(RETRY_WINDOW, &mut parser, "takes seconds")?),
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Show(HELP.to_owned())),
            other => return Err(other.unexpected().into()),
        }
    }
    watch.restart_policy = policy.ok_or_else(|| wrong(RESTART_POLICY, "is missing; it takes Never or OnFailure"))?;
    refuse_contradictions(&watch)?;
    Ok(Command::Watch(watch))
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
        assert_eq!(parse(words).unwrap(), Command::Watch(watch));
    }

    #[test]
    fn wrong_arguments_are_named_in_one_line() {
        let cases = [
            ("aux-shim", "no command: try aux-shim watch --await NAME --restart-policy Never, or --help"),
            ("aux-shim sleep", "unknown command \"sleep\": there is watch; see --help"),
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
        for (line, message) in cases {
            assert_eq!(parse_line(line).unwrap_err().to_string(), message, "{line}");
        }
    }

    #[test]
    fn help_shows_an_example_that_parses() {
        let Command::Show(help) = parse_line("aux-shim --help").unwrap() else { panic!("no help") };
        let example = help.lines().find_map(|line| line.strip_prefix("example: ")).unwrap();
        assert!(matches!(parse_line(example), Ok(Command::Watch(_))), "{example}");
    }
}
