//! Reads the kubelet's report: the annotation `istio-aux.io/ended`, in a volume of the downward API.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use contract::args::WatchArgs;
use contract::names::ENDED_ANNOTATION;

/// How far the clock of files may be behind: it has the resolution of the kernel's ticks.
const FILE_CLOCK_LAG: Duration = Duration::from_millis(10);

/// Reads the file that has the pod's annotations.
#[derive(Debug)]
pub(crate) struct EndedReport {
    file: Option<PathBuf>,
    /// Reports that were written before this do not count: every container may have been started again since.
    not_before: Option<SystemTime>,
}

impl EndedReport {
    /// Returns a reader of the file that `args` names, if any.
    pub(crate) fn new(args: &WatchArgs) -> Self {
        let not_before = args.all_may_restart.then(SystemTime::now);
        Self { file: args.annotations.as_ref().map(PathBuf::from), not_before }
    }

    /// Returns the exit codes of the awaited containers, such as `main=0`, once the kubelet has reported them.
    pub(crate) fn read(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        if let Some(start) = self.not_before
            && fs::metadata(file).ok()?.modified().ok()? + FILE_CLOCK_LAG < start
        {
            return None;
        }
        annotation(&fs::read_to_string(file).ok()?)
    }
}

/// Returns the annotation's value. The kubelet writes a line for each: `KEY="VALUE"` (`FormatMap` in `fieldpath.go`).
fn annotation(text: &str) -> Option<String> {
    let value =
        text.lines().find_map(|line| line.strip_prefix(ENDED_ANNOTATION)?.strip_prefix("=\"")?.strip_suffix('"'));
    value.filter(|value| !value.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::policy::RestartPolicy;

    #[test]
    fn annotation_is_found_among_others() {
        let cases = [
            ("a=\"b\"\nistio-aux.io/ended=\"main=0,metrics=137\"\n", Some("main=0,metrics=137")),
            ("istio-aux.io/ended-too=\"main=0\"\n", None),
            ("note=\"\\nistio-aux.io/ended=\\\"main=0\\\"\"\n", None),
            ("istio-aux.io/ended=\"\"\n", None),
            ("istio-aux.io/ended=\"main", None),
            ("", None),
        ];
        for (text, value) in cases {
            assert_eq!(annotation(text).as_deref(), value, "{text:?}");
        }
    }

    #[test]
    fn report_of_an_earlier_run_does_not_count() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "istio-aux.io/ended=\"main=0\"\n").unwrap();
        let args = |all_may_restart| WatchArgs {
            annotations: Some(file.path().display().to_string()),
            all_may_restart,
            ..WatchArgs::new(vec!["main".to_owned()], RestartPolicy::Never)
        };
        let before = EndedReport::new(&args(false));
        assert_eq!(before.read().as_deref(), Some("main=0"));
        let mut reader = EndedReport::new(&args(true));
        let written = fs::metadata(file.path()).unwrap().modified().unwrap();
        reader.not_before = Some(written + 2 * FILE_CLOCK_LAG);
        assert_eq!(reader.read(), None);
        reader.not_before = Some(SystemTime::UNIX_EPOCH);
        assert_eq!(reader.read().as_deref(), Some("main=0"));
    }

    #[test]
    fn missing_file_is_no_report() {
        let args = WatchArgs::new(vec!["main".to_owned()], RestartPolicy::Never);
        assert_eq!(EndedReport::new(&args).read(), None);
        let args = WatchArgs { annotations: Some("/no/such/file".to_owned()), ..args };
        assert_eq!(EndedReport::new(&args).read(), None);
    }
}
