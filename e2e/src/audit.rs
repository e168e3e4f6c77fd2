//! The API server's audit log on the one-node cluster, without the tests' own requests.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

use crate::node::state_directory;

/// The audit log from where it ended when this was made.
#[derive(Debug)]
pub struct Audit {
    file: PathBuf,
    from: u64,
}

impl Audit {
    /// Begins to count now.
    pub fn from_now() -> Self {
        let file = state_directory().join("log/audit.log");
        let log = std::fs::read(&file).expect("the API server keeps an audit log");
        // It may be writing the last line.
        let from = log.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        Self { file, from: from.try_into().expect("it is a length") }
    }

    /// Counts the requests since then by the name that `name` gives their events; `None` leaves one out. A watch has an event as it
    /// begins and another as it ends, and counts once.
    pub fn count(&self, name: impl Fn(&Value) -> Option<String>) -> BTreeMap<String, usize> {
        let length = self.file.metadata().expect("the API server keeps an audit log").len();
        assert!(length >= self.from, "the audit log was rotated, and its counts are lost");
        let mut log = File::open(&self.file).expect("the audit log is read");
        log.seek(SeekFrom::Start(self.from)).expect("it is a file");
        let mut counts = BTreeMap::new();
        let mut seen = HashSet::new();
        let mut text = Vec::new();
        log.read_to_end(&mut text).expect("it is read");
        // The API server may be writing the last line.
        let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        lines.pop();
        for line in lines {
            let event: Value = serde_json::from_slice(line).expect("each line is an event");
            if let Some(name) = name(&event)
                && seen.insert(event["auditID"].to_string())
            {
                *counts.entry(name).or_default() += 1;
            }
        }
        counts
    }
}
