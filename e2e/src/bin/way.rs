//! Installs istio-aux in one of the ways that the documents tell, or removes it: `way install NAME`, `way remove NAME`. For `make test-matrix`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use e2e::ways::ALL;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let names = ALL.map(|(name, _)| name).join("|");
    let known = |name: &str| ALL.into_iter().find(|(known, _)| *known == name).map(|(_, way)| way);
    let [command, name] = words.as_slice() else { return usage(&names) };
    match (*command, known(name)) {
        ("install", Some(way)) => way.install(),
        ("remove", Some(way)) => way.remove(),
        _ => return usage(&names),
    }
    ExitCode::SUCCESS
}

fn usage(names: &str) -> ExitCode {
    eprintln!("usage: way install|remove {names}");
    ExitCode::from(2)
}
