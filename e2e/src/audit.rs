//! The API server's audit log on the one-node cluster: who asked for what. It leaves out what the tests themselves ask for.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

use crate::node::state_folder;

/// The audit log from where it ended when this was made.
#[derive(Debug)]
pub struct Audit {
    file: PathBuf,
    from: u64,
}

impl Audit {
    /// What is asked from now on.
    #[must_use]
    pub fn from_now() -> Self {
        let file = state_folder().join("log/audit.log");
        let from = file.metadata().expect("the API server keeps an audit log").len();
        Self { file, from }
    }

    /// The requests since then that are wanted, counted by what `name` makes of their events. One that goes on, such as a watch, has
    /// an event as it begins and another as it ends, and counts once.
    #[must_use]
    pub fn count(&self, name: impl Fn(&Value) -> Option<String>) -> BTreeMap<String, usize> {
        let length = self.file.metadata().expect("the API server keeps an audit log").len();
        assert!(length >= self.from, "the audit log was begun anew, and what was counted in it is lost");
        let mut log = File::open(&self.file).expect("the audit log is read");
        log.seek(SeekFrom::Start(self.from)).expect("it is a file");
        let mut counts = BTreeMap::new();
        let mut seen = HashSet::new();
        for line in BufReader::new(log).lines() {
            let event: Value = serde_json::from_str(&line.expect("it is text")).expect("each line is an event");
            if let Some(name) = name(&event)
                && seen.insert(event["auditID"].to_string())
            {
                *counts.entry(name).or_default() += 1;
            }
        }
        counts
    }
}
