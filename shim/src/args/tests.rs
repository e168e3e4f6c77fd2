//! Parsed command lines, and the errors of invalid ones.

use super::*;

fn parse_line(line: &str) -> Result<Command, Error> {
    parse(line.split_whitespace().map(OsString::from))
}

#[test]
fn written_arguments_are_parsed() {
    let mut watch = WatchArgs::new(vec!["main".into(), "metrics".into()], RestartPolicy::OnFailure);
    watch.status_port = 15_999;
    watch.quit.push("http://127.0.0.1:9091/quitquitquit".parse().unwrap());
    watch.annotations = Some("/pod/annotations".into());
    watch.all_may_restart = true;
    watch.report_only = true;
    watch.may_restart.push("metrics".into());
    let words = std::iter::once("aux-shim".to_owned()).chain(watch.to_args()).map(OsString::from);
    assert_eq!(parse(words).unwrap(), Command::Watch(watch.clone()));
    let command = ["pilot-agent", "proxy", "--await=x", "--", "-h"].map(OsString::from);
    let words = watch.to_supervising_command("aux-shim").into_iter().map(OsString::from).chain(command.clone());
    assert_eq!(parse(words).unwrap(), Command::Supervise(watch, command.to_vec()));
    let after = StartAfterArgs { argument: "-s-db".into() };
    let words = after.to_command("aux-shim").into_iter().map(OsString::from).chain(command.clone());
    assert_eq!(parse(words).unwrap(), Command::StartAfter(after, command.to_vec()));
}

/// Command lines, and the errors that they lead to.
const ERRORS: &str = r#"
aux-shim
no command: try aux-shim watch --await NAME --restart-policy Never, or --help
aux-shim sleep
unknown command "sleep": there are watch, supervise, start-after and install; see --help
aux-shim wrap -- true
unknown command "wrap": there are watch, supervise, start-after and install; see --help
aux-shim watch
--restart-policy: is missing; it takes Never or OnFailure
aux-shim watch --restart-policy Never
--await: is missing; name at least one container
aux-shim watch --await a --restart-policy Always
--restart-policy: takes Never or OnFailure, and was given "Always"
aux-shim watch --await a --restart-policy Never --status-port 70000
--status-port: takes a port, 0 to 65535, and was given "70000"
aux-shim watch --await a --await a --restart-policy Never
--await: "a" is named twice, or is the proxy
aux-shim watch --await a --await istio-proxy --restart-policy Never
--await: "istio-proxy" is named twice, or is the proxy
aux-shim watch --await= --restart-policy Never
--await: takes a name, and was given ""
aux-shim watch --await a --restart-policy Never --quit http://10.0.0.1:80/q
--quit: must be http://127.0.0.1:PORT/PATH: plain HTTP, on loopback, with its port, and was given "http://10.0.0.1:80/q"
aux-shim watch --await a --restart-policy Never --may-restart b
--may-restart: "b" is neither awaited nor the proxy
aux-shim watch --await
missing argument for option '--await'; see --help
aux-shim watch --no-such
invalid option '--no-such'; see --help
aux-shim watch main
unexpected argument "main"; see --help
aux-shim supervise --await a --restart-policy Never
supervise: no command to run; put it at the end, after --
aux-shim supervise --await a --restart-policy Never --
supervise: no command to run; put it at the end, after --
aux-shim supervise --no-such -- agent
invalid option '--no-such'; see --help
aux-shim supervise -x -- agent
invalid option '-x'; see --help
aux-shim start-after --argument=-x --other
invalid option '--other'; see --help
aux-shim start-after -- true
--argument: is missing; it takes an argument of the other container
aux-shim start-after --argument=-x
start-after: no command to run; put it at the end, after --
aux-shim install
install: takes a directory
"#;

#[test]
fn invalid_arguments_are_reported_in_one_line() {
    let lines: Vec<&str> = ERRORS.trim().lines().collect();
    for case in lines.chunks(2) {
        assert_eq!(parse_line(case[0]).unwrap_err().to_string(), case[1], "{}", case[0]);
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
