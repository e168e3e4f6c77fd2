//! Writes the tables of docs/conformance.md: which of Kubernetes' and Istio's own tests pass in which column, by what hack/conformance
//! and hack/istio-suites leave in target. Fails where a difference has no reason in e2e/conformance.yaml, or a reason no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;

use e2e::command::{printed, run_offline};
use serde_json::Value;

const PAGE: &str = "docs/conformance.md";
const REASONS: &str = "e2e/conformance.yaml";

/// Describes a project's tests, and the columns in which they run.
struct Suite {
    /// Names it on the command line, and in the marks of its tables.
    name: &'static str,
    /// The first is what the others are compared with.
    columns: &'static [&'static str],
    /// Have istio-aux in them. What fails here and not in the first column has a reason.
    ours: &'static [&'static str],
    /// Istio's ordinary sidecar without istio-aux, for the tests that fail in the column `shim`.
    control: Option<&'static str>,
    /// Says what the first column is, after "in" or "with".
    compared_with: &'static str,
    /// What its runs write: a column's reports are read one after the other.
    targets: &'static [&'static str],
    read: fn(&str) -> Result<Report, String>,
}

const SUITES: [Suite; 2] = [
    Suite {
        name: "conformance",
        columns: &["none", "native", "shim", "node"],
        ours: &["shim", "node"],
        control: Some("sidecar"),
        compared_with: "in no mesh",
        targets: &["target/conformance/COLUMN.json"],
        read: ginkgo,
    },
    Suite {
        name: "istio-suites",
        columns: &["sidecar", "node"],
        ours: &["node"],
        control: None,
        compared_with: "with Istio's sidecar",
        targets: &[
            "target/istio-suites/COLUMN-pilot.log",
            "target/istio-suites/COLUMN-security.log",
            "target/istio-suites/COLUMN-api.log",
            "target/istio-suites/COLUMN-policy.log",
        ],
        read: go_test,
    },
];

/// Holds what one column's run has written: its day, and its results.
#[derive(Default)]
struct Report {
    date: String,
    results: Results,
}

/// Holds what a test is about, such as `[sig-apps] Job`, and whether it passed.
struct Spec {
    group: String,
    passed: bool,
}

/// Holds the tests that ran, by their names.
type Results = BTreeMap<String, Spec>;

/// Reads a report of Ginkgo's in JSON.
fn ginkgo(text: &str) -> Result<Report, String> {
    let report: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let date = report[0]["StartTime"].as_str().and_then(|time| time.get(..10)).unwrap_or("an unknown day").to_owned();
    Ok(Report { date, results: results(&report) })
}

/// Reads what Go's test programs print with `-test.v`. A test with subtests counts by these, unless it failed and none of them did.
#[expect(clippy::unnecessary_wraps, reason = "as for the other suites")]
fn go_test(text: &str) -> Result<Report, String> {
    let ended = text.lines().filter_map(|line| line.trim_start().strip_prefix("--- ")?.split_once(": "));
    let ended: BTreeMap<String, &str> =
        ended.filter_map(|(outcome, test)| Some((without_addresses(test.split(' ').next()?), outcome))).collect();
    let counts = |test: &str, outcome: &str| {
        let below = format!("{test}/");
        let mut subtests = ended.range(below.clone()..).take_while(|(next, _)| next.starts_with(&below)).peekable();
        match outcome {
            "PASS" => subtests.peek().is_none(),
            "FAIL" => !subtests.any(|(_, outcome)| *outcome == "FAIL"),
            _ => false,
        }
    };
    let spec = |(test, outcome): (&String, &&str)| {
        let group = test.split('/').next().unwrap_or_default().to_owned();
        (test.clone(), Spec { group, passed: *outcome == "PASS" })
    };
    let results = ended.iter().filter(|(test, outcome)| counts(test, outcome)).map(spec).collect();
    let date = text.lines().find_map(|line| line.get(..10).filter(|date| date.starts_with("20"))).unwrap_or_default();
    Ok(Report { date: date.to_owned(), results })
}

/// Returns a test's name with `IP` for each address of this run's Services.
fn without_addresses(test: &str) -> String {
    let words: Vec<&str> =
        test.split('_').map(|word| if word.parse::<Ipv4Addr>().is_ok() { "IP" } else { word }).collect();
    words.join("_")
}

fn results(report: &Value) -> Results {
    let specs = report.as_array().into_iter().flatten().filter_map(|suite| suite["SpecReports"].as_array()).flatten();
    let ran = specs.filter(|spec| spec["LeafNodeType"] == "It" && spec["State"] != "skipped");
    ran.map(|spec| {
        let texts = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().chain([&spec["LeafNodeText"]]);
        let texts: Vec<&str> = texts.filter_map(Value::as_str).collect();
        let group = texts[0].trim_end_matches("[NodeConformance]").trim().to_owned();
        (texts.join(" "), Spec { group, passed: spec["State"] == "passed" })
    })
    .collect()
}

fn passes(results: &Results, spec: &str) -> bool {
    results.get(spec).is_some_and(|spec| spec.passed)
}

fn row(first: &str, cells: impl IntoIterator<Item = impl ToString>) -> String {
    let cells: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
    format!("| {first} | {} |", cells.join(" | "))
}

/// Returns a table of how many tests of each group pass in each column.
fn counts(columns: &[(&str, Results)]) -> Vec<String> {
    let (_, none) = &columns[0];
    let groups: BTreeSet<&str> = none.values().map(|spec| spec.group.as_str()).collect();
    let mut lines = vec![row("tests", columns.iter().map(|(name, _)| name)), row("---", columns.iter().map(|_| "---"))];
    for group in groups {
        let passed = |results: &Results| results.values().filter(|spec| spec.passed && spec.group == group).count();
        lines.push(row(group, columns.iter().map(|(_, results)| passed(results))));
    }
    let of_all =
        |results: &Results| format!("{} of {}", results.values().filter(|spec| spec.passed).count(), results.len());
    lines.push(row("all", columns.iter().map(|(_, results)| of_all(results))));
    lines
}

/// Holds why a test that passes in no mesh fails in these columns.
struct Reason {
    test: String,
    columns: Vec<String>,
    why: String,
}

/// Reads the reasons of a suite.
fn reasons(text: &str, suite: &Suite) -> Vec<Reason> {
    let all: Value = serde_saphyr::from_str(text).expect("reasons are YAML");
    let list = &all[suite.name];
    let string = |value: &Value| value.as_str().expect("a reason has test, columns and why").to_owned();
    let reason = |entry: &Value| Reason {
        test: string(&entry["test"]),
        columns: entry["columns"].as_array().into_iter().flatten().map(string).collect(),
        why: string(&entry["why"]),
    };
    list.as_array().into_iter().flatten().map(reason).collect()
}

/// Returns a table of what passes in the first column and fails in ours, and what is wrong with the reasons.
fn differences(
    suite: &Suite,
    columns: &[(&str, Results)],
    control: &Results,
    reasons: &[Reason],
) -> (Vec<String>, Vec<String>) {
    let (mut lines, mut wrong) = (Vec::new(), Vec::new());
    let mut used = vec![false; reasons.len()];
    for spec in columns[0].1.keys().filter(|spec| passes(&columns[0].1, spec)) {
        let failed = columns.iter().filter(|(name, results)| suite.ours.contains(name) && !passes(results, spec));
        for (column, _) in failed {
            let is_istios = control.get(spec).is_some_and(|spec| !spec.passed);
            let is_it = |it: &Reason| spec.contains(&it.test) && it.columns.iter().any(|name| name == column);
            let why = if let Some(at) = reasons.iter().position(is_it) {
                used[at] = true;
                reasons[at].why.as_str()
            } else if *column == "shim" && is_istios {
                "Istio's sidecar: it fails without istio-aux, too."
            } else {
                wrong.push(format!("{column}: '{spec}' fails, and nothing in {REASONS} says why"));
                "not known"
            };
            lines.push(format!("| {spec} | {column} | {why} |"));
        }
    }
    let unused = reasons.iter().zip(used).filter(|(_, used)| !used).map(|(it, _)| it);
    wrong.extend(unused.map(|it| format!("'{}' passes; next: remove its reason from {REASONS}", it.test)));
    if !lines.is_empty() {
        let about = format!("These pass {}, and fail with istio-aux:", suite.compared_with);
        let head = ["", &about, "", "| test | column | why |", "| --- | --- | --- |"];
        lines.splice(0..0, head.map(str::to_owned));
    }
    (lines, wrong)
}

/// Returns a list of what fails in the first column.
fn failures(suite: &Suite, first: &Results) -> Vec<String> {
    let failed = first.iter().filter(|(_, spec)| !spec.passed);
    let mut lines: Vec<String> = failed.map(|(name, _)| format!("- {name}")).collect();
    if !lines.is_empty() {
        let head = [String::new(), format!("These fail {}, too:", suite.compared_with), String::new()];
        lines.splice(0..0, head);
    }
    lines
}

/// Says when the tests ran, and on which commit.
fn about(report: &Report) -> String {
    let commit = printed(&run_offline("git", &["rev-parse", "--short", "HEAD"]));
    format!("{}, commit {}, one run of each column:", report.date, commit.trim())
}

/// Writes the tables of a suite, and returns what is wrong with the reasons.
fn write(suite: &Suite) -> Result<Vec<String>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"));
    let report = |column: &str| {
        let mut whole = Report::default();
        for target in suite.targets {
            let path = target.replace("COLUMN", column);
            let report = (suite.read)(&read(&path)?).map_err(|error| format!("{path}: {error}"))?;
            whole.date = report.date;
            whole.results.extend(report.results);
        }
        Ok::<_, String>(whole)
    };
    let reports = suite.columns.iter().map(|column| report(column)).collect::<Result<Vec<_>, _>>()?;
    let control = suite.control.map(report).transpose()?.unwrap_or_default().results;
    let about = vec![about(&reports[0]), String::new()];
    let columns: Vec<_> = suite.columns.iter().copied().zip(reports.into_iter().map(|report| report.results)).collect();
    let (differences, wrong) = differences(suite, &columns, &control, &reasons(&read(REASONS)?, suite));
    let tables = [about, counts(&columns), differences, failures(suite, &columns[0].1)].concat().join("\n");
    let (begin, end) = (format!("<!-- tables of make {} -->\n", suite.name), "<!-- end of the tables -->\n");
    let page = read(PAGE)?;
    let (before, rest) = page.split_once(&begin).ok_or(format!("{PAGE} has no line {begin}"))?;
    let (_, after) = rest.split_once(end).ok_or(format!("{PAGE} has no line {end}"))?;
    std::fs::write(root.join(PAGE), format!("{before}{begin}{tables}\n{end}{after}"))
        .map_err(|error| error.to_string())?;
    Ok(wrong)
}

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
        eprintln!("usage: conformance {}", SUITES.map(|suite| suite.name).join("|"));
        return ExitCode::from(2);
    };
    let wrong = write(suite).unwrap_or_else(|error| vec![format!("{error}; next: make {name}")]);
    for line in &wrong {
        eprintln!("conformance: {line}");
    }
    ExitCode::from(u8::from(!wrong.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::{Results, SUITES, counts, differences, failures, go_test, reasons, results};
    use serde_json::json;

    /// Returns the columns of a suite of two tests, of which the second fails in some columns.
    fn columns(fails_in: &[&str]) -> Vec<(&'static str, Results)> {
        let column = |name: &'static str| {
            let spec = |test: &str, state: &str| {
                json!({"LeafNodeType": "It", "LeafNodeText": test, "State": state,
                    "ContainerHierarchyTexts": ["[sig-apps] Job", "in a namespace"]})
            };
            let second = spec("fails", if fails_in.contains(&name) { "failed" } else { "passed" });
            let report = json!([{"SpecReports": [spec("passes", "passed"), second, spec("is not run", "skipped")]}]);
            (name, results(&report))
        };
        SUITES[0].columns.iter().copied().map(column).collect()
    }

    #[test]
    fn tests_that_pass_are_counted_by_group_and_column() {
        let counts = counts(&columns(&["shim"]));
        assert_eq!(counts[0], "| tests | none | native | shim | node |");
        assert_eq!(counts[2..], ["| [sig-apps] Job | 2 | 2 | 1 | 2 |", "| all | 2 of 2 | 2 of 2 | 1 of 2 | 2 of 2 |"]);
    }

    #[test]
    fn difference_needs_a_reason_and_a_reason_a_difference() {
        let known = reasons("conformance: [{test: fails, columns: [shim], why: It is so.}]", &SUITES[0]);
        let passes = &columns(&[])[0].1;
        let (lines, wrong) = differences(&SUITES[0], &columns(&["shim"]), passes, &known);
        assert_eq!(lines.last().unwrap(), "| [sig-apps] Job in a namespace fails | shim | It is so. |");
        assert!(wrong.is_empty(), "{wrong:?}");
        let (_, wrong) = differences(&SUITES[0], &columns(&["node"]), passes, &[]);
        assert!(wrong[0].starts_with("node: '[sig-apps] Job in a namespace fails' fails"), "{wrong:?}");
        assert!(differences(&SUITES[0], &columns(&[]), passes, &known).1[0].starts_with("'fails' passes"));
    }

    #[test]
    fn what_istios_sidecar_fails_alone_needs_no_reason() {
        let fails = &columns(&["none"])[0].1;
        let (lines, wrong) = differences(&SUITES[0], &columns(&["native", "shim"]), fails, &[]);
        assert!(lines.last().unwrap().contains("it fails without istio-aux, too"), "{lines:?}");
        assert!(wrong.is_empty(), "{wrong:?}");
        // For a pod without a sidecar, that is not a reason.
        assert_eq!(differences(&SUITES[0], &columns(&["node"]), fails, &[]).1.len(), 1);
    }

    #[test]
    fn test_that_fails_in_no_mesh_is_no_difference() {
        let columns = columns(&["none"]);
        assert_eq!(failures(&SUITES[0], &columns[0].1).last().unwrap(), "- [sig-apps] Job in a namespace fails");
        assert!(differences(&SUITES[0], &columns, &columns[1].1, &[]).0.is_empty());
    }

    #[test]
    fn subtests_of_go_count_in_place_of_their_tests() {
        let log = "2026-11-26T01:02:03.4Z\tinfo\n=== RUN   TestA\n--- FAIL: TestA (1.00s)\n    --- PASS: TestA/b (0.00s)\n    --- FAIL: TestA/b-c (0.00s)\n        --- FAIL: TestA/b-c/d (0.00s)\n--- PASS: TestE/to_10.0.0.7 (2.00s)\n--- SKIP: TestF (0.00s)\n--- PASS: TestG (0.00s)\n    --- SKIP: TestG/h (0.00s)\n--- FAIL: TestI (0.00s)\n    --- PASS: TestI/j (0.00s)\n";
        let report = go_test(log).unwrap();
        let outcomes: Vec<_> = report.results.iter().map(|(test, spec)| (&**test, spec.passed)).collect();
        let expected =
            [("TestA/b", true), ("TestA/b-c/d", false), ("TestE/to_IP", true), ("TestI", false), ("TestI/j", true)];
        assert_eq!(outcomes, expected, "all of TestG was skipped, and TestI failed by itself");
        assert_eq!((report.date.as_str(), &*report.results["TestA/b"].group), ("2026-11-26", "TestA"));
    }
}
