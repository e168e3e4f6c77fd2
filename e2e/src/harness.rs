//! Runs tests that need parts of a cluster, and counts those that cannot run there as ignored.

use std::collections::BTreeSet;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::thread;

use libtest_mimic::{Arguments, Trial};

use crate::kubectl::kubectl;

/// A part of a cluster or of the environment that tests need.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// A kind, as `kubectl api-resources --output=name` prints it.
    Kind(&'static str),
    /// An environment variable.
    Variable(&'static str),
}

/// The body of a test.
pub type Test = Box<dyn FnOnce() + Send>;

/// Tests with the same needs.
pub struct Group {
    /// The name of the component.
    pub name: &'static str,
    /// Everything that the tests need.
    pub needs: &'static [Need],
    /// The tests' names and bodies.
    pub tests: Vec<(&'static str, Test)>,
}

/// Makes a [`Group`] of asynchronous functions.
#[macro_export]
macro_rules! group {
    ($name:literal, $needs:expr, [$($test:path),* $(,)?]) => {
        $crate::harness::Group {
            name: $name,
            needs: $needs,
            tests: vec![$((stringify!($test), Box::new(|| $crate::harness::block_on($test())))),*],
        }
    };
}

pub use crate::group;

/// Runs a guard's clean-up when it is dropped. After a test's failure, a panic in it is only printed: a second panic would abort the
/// program before the other guards clean up.
pub fn undo(work: impl FnOnce()) {
    if !thread::panicking() {
        work();
    } else if catch_unwind(AssertUnwindSafe(work)).is_err() {
        eprintln!("not all of what the test has changed is undone");
    }
}

/// Runs a future to its end.
pub fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime is made").block_on(future);
}

/// Runs the groups as the arguments of this process say. Prints which are not run, and why.
#[must_use]
pub fn run_groups(groups: Vec<Group>) -> ExitCode {
    let arguments = Arguments::from_args();
    let kinds = if arguments.list { BTreeSet::new() } else { kinds() };
    let trials = groups.into_iter().flat_map(|group| {
        let unmet = group.needs.iter().filter(|_| !arguments.list).find_map(|need| need.unmet(&kinds));
        if let Some(reason) = &unmet {
            println!("not run: {} ({reason})", group.name);
        }
        let is_unmet = unmet.is_some();
        group.tests.into_iter().map(move |(name, test)| {
            let name = format!("{}::{}", group.name, name.rsplit("::").next().unwrap_or(name));
            let run = move || {
                test();
                Ok(())
            };
            Trial::test(name, run).with_ignored_flag(is_unmet)
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// Returns the names of the cluster's kinds.
fn kinds() -> BTreeSet<String> {
    kubectl(&["api-resources", "--output=name"]).lines().map(str::to_owned).collect()
}

impl Need {
    /// Returns the reason why the need is not met, if it is not.
    fn unmet(self, kinds: &BTreeSet<String>) -> Option<String> {
        match self {
            Self::Kind(kind) => (!kinds.contains(kind)).then(|| format!("kind {kind} is not in this cluster")),
            Self::Variable(name) => env::var_os(name).is_none().then(|| format!("{name} is not set")),
        }
    }
}
