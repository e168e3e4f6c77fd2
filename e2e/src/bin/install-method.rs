//! Installs istio-aux by one of the methods of docs/install.md, or removes it, for `make test-matrix`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use e2e::install_methods::ALL;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let names = ALL.map(|(name, _)| name).join("|");
    let known = |name: &str| ALL.into_iter().find(|(known, _)| *known == name).map(|(_, method)| method);
    let [command, name] = words.as_slice() else { return usage(&names) };
    match (*command, known(name)) {
        ("install", Some(method)) => method.install(),
        ("remove", Some(method)) => method.remove(),
        _ => return usage(&names),
    }
    ExitCode::SUCCESS
}

fn usage(names: &str) -> ExitCode {
    eprintln!("usage: install-method install|remove {names}");
    ExitCode::from(2)
}
