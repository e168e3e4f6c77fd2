//! Parses command lines.

use super::*;

fn rejection(line: &str) -> String {
    one_line(&Cli::try_parse_from(line.split_whitespace()).unwrap_err())
}

#[test]
fn wrong_arguments_are_named_in_one_line() {
    let cases = [
        (
            "istio-aux",
            "no command: it takes check, finish, proxies, inject, manifests, policy, support-bundle, uninstall, version, tenant-objects or \
             completions; see --help",
        ),
        ("istio-aux sever", "unrecognized subcommand 'sever'; see --help"),
        ("istio-aux check --no-such", "unexpected argument '--no-such' found; see --help"),
        ("istio-aux inject", "the following required arguments were not provided: --filename <FILE>; see --help"),
        ("istio-aux finish", "the following required arguments were not provided: <--all-stuck|POD>; see --help"),
        ("istio-aux finish x -A", "the argument '[POD]...' cannot be used with '--all-namespaces'; see --help"),
        ("istio-aux finish x -l a=b", "the argument '[POD]...' cannot be used with '--selector <LABELS>'; see --help"),
        (
            "istio-aux check -o xml",
            "invalid value 'xml' for '--output <FORMAT>' [possible values: text, json, yaml]; see --help",
        ),
        ("istio-aux check --pre --wait", "the argument '--pre' cannot be used with '--wait'; see --help"),
        ("istio-aux check --as-group g", "the following required arguments were not provided: --as <USER>; see --help"),
        ("istio-aux check --wait job/a", "the argument '--wait' cannot be used with '[KIND/NAME]'; see --help"),
        (
            "istio-aux manifests --image a",
            "the following required arguments were not provided: --registry <REGISTRY>; see --help",
        ),
    ];
    for (line, message) in cases {
        assert_eq!(rejection(line), message, "{line}");
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in Cli::command().get_subcommands() {
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("example"), "{}", command.get_name());
        assert!(help.contains("istio-aux"), "{}", command.get_name());
    }
}

/// Returns the command lines in the examples of each command, without comments, redirections and other programs.
fn examples() -> Vec<String> {
    let command = Cli::command();
    let helps = command.get_subcommands().filter_map(clap::Command::get_after_help).map(ToString::to_string);
    let text = helps.collect::<Vec<_>>().join("\n");
    let commands = text.lines().flat_map(|line| line.trim_start_matches("example: ").split(" | ")).map(str::trim);
    let ours = commands.filter(|line| line.starts_with("istio-aux "));
    ours.filter_map(|line| line.split(" > ").next()?.split("  ").next()).map(str::to_owned).collect()
}

#[test]
fn every_example_can_be_parsed() {
    let examples = examples();
    assert!(examples.len() > 15, "{examples:?}");
    for line in examples {
        if let Err(error) = Cli::try_parse_from(line.split_whitespace()) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn cluster_commands_have_the_common_options() {
    let command = Cli::command();
    for name in ["check", "finish", "proxies", "uninstall", "version"] {
        let command = command.find_subcommand(name).unwrap();
        let options: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        for option in ["kubeconfig", "context", "as", "as-group", "request-timeout", "output"] {
            assert!(options.contains(&option), "{name}: {option}");
        }
    }
}

#[test]
fn as_a_plugin_the_usage_shows_kubectl() {
    for (program, shown) in
        [("/bin/kubectl-istio_aux", "Usage: kubectl istio-aux "), ("istio-aux", "Usage: istio-aux ")]
    {
        let help = parse([program, "check", "--help"].map(OsString::from).to_vec()).unwrap_err().to_string();
        assert!(help.contains(shown), "{help}");
    }
}
