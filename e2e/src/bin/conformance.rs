//! Writes the tables of docs/conformance.md: which of Kubernetes' own tests pass in which column, by Ginkgo's reports in
//! target/conformance (`hack/conformance`). Fails where a difference has no reason in e2e/conformance.yaml, or a reason no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use e2e::command::{printed, run_offline};
use serde_json::Value;

const COLUMNS: [&str; 4] = ["none", "native", "shim", "node"];
/// Istio's ordinary sidecar without istio-aux, for the tests that fail in the column `shim`.
const CONTROL: &str = "sidecar";
/// Has istio-aux in it. What fails here and not without a mesh has a reason.
const OURS: [&str; 2] = ["shim", "node"];
const PAGE: &str = "docs/conformance.md";
const REASONS: &str = "e2e/conformance.yaml";
const BEGIN: &str = "<!-- tables of make conformance -->\n";
const END: &str = "<!-- end of the tables -->\n";

/// Holds what a test is about, such as `[sig-apps] Job`, and whether it passed.
struct Spec {
    group: String,
    passed: bool,
}

/// Holds the tests that ran, by their names.
type Results = BTreeMap<String, Spec>;

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

fn reasons(text: &str) -> Vec<Reason> {
    let list: Value = serde_saphyr::from_str(text).expect("reasons are YAML");
    let string = |value: &Value| value.as_str().expect("a reason has test, columns and why").to_owned();
    let reason = |entry: &Value| Reason {
        test: string(&entry["test"]),
        columns: entry["columns"].as_array().into_iter().flatten().map(string).collect(),
        why: string(&entry["why"]),
    };
    list.as_array().into_iter().flatten().map(reason).collect()
}

/// Returns a table of what passes in no mesh and fails in our columns, and what is wrong with the reasons.
fn differences(columns: &[(&str, Results)], control: &Results, reasons: &[Reason]) -> (Vec<String>, Vec<String>) {
    let (mut lines, mut wrong) = (Vec::new(), Vec::new());
    let mut used = vec![false; reasons.len()];
    for spec in columns[0].1.keys().filter(|spec| passes(&columns[0].1, spec)) {
        let failed = columns.iter().filter(|(name, results)| OURS.contains(name) && !passes(results, spec));
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
        let head = [
            "",
            "These pass in no mesh, and fail with istio-aux:",
            "",
            "| test | column | why |",
            "| --- | --- | --- |",
        ];
        lines.splice(0..0, head.map(str::to_owned));
    }
    (lines, wrong)
}

/// Returns a list of what fails in no mesh.
fn failures(none: &Results) -> Vec<String> {
    let mut lines: Vec<String> =
        none.iter().filter(|(_, spec)| !spec.passed).map(|(name, _)| format!("- {name}")).collect();
    if !lines.is_empty() {
        lines.splice(0..0, ["", "These fail in no mesh, too:", ""].map(str::to_owned));
    }
    lines
}

/// Says when the tests ran, and on which commit.
fn about(report: &Value) -> String {
    let date = report[0]["StartTime"].as_str().and_then(|time| time.get(..10)).unwrap_or("an unknown day");
    let commit = printed(&run_offline("git", &["rev-parse", "--short", "HEAD"]));
    format!("{date}, commit {}, one run of each column:", commit.trim())
}

fn write() -> Result<Vec<String>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"));
    let report = |name: &str| {
        let report = serde_json::from_str::<Value>(&read(&format!("target/conformance/{name}.json"))?);
        report.map_err(|error| format!("{name}: {error}"))
    };
    let reports = COLUMNS.into_iter().map(report).collect::<Result<Vec<_>, _>>()?;
    let columns: Vec<_> = COLUMNS.into_iter().zip(reports.iter().map(results)).collect();
    let control = results(&report(CONTROL)?);
    let (differences, wrong) = differences(&columns, &control, &reasons(&read(REASONS)?));
    let about = vec![about(&reports[0]), String::new()];
    let tables = [about, counts(&columns), differences, failures(&columns[0].1)].concat().join("\n");
    let page = read(PAGE)?;
    let (before, rest) = page.split_once(BEGIN).ok_or(format!("{PAGE} has no mark before the tables"))?;
    let (_, after) = rest.split_once(END).ok_or(format!("{PAGE} has no mark after the tables"))?;
    std::fs::write(root.join(PAGE), format!("{before}{BEGIN}{tables}\n{END}{after}"))
        .map_err(|error| error.to_string())?;
    Ok(wrong)
}

fn main() -> ExitCode {
    let wrong = write().unwrap_or_else(|error| vec![format!("{error}; next: make conformance")]);
    for line in &wrong {
        eprintln!("conformance: {line}");
    }
    ExitCode::from(u8::from(!wrong.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Results, counts, differences, failures, reasons, results};
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
        COLUMNS.map(column).into()
    }

    #[test]
    fn tests_that_pass_are_counted_by_group_and_column() {
        let counts = counts(&columns(&["shim"]));
        assert_eq!(counts[0], "| tests | none | native | shim | node |");
        assert_eq!(counts[2..], ["| [sig-apps] Job | 2 | 2 | 1 | 2 |", "| all | 2 of 2 | 2 of 2 | 1 of 2 | 2 of 2 |"]);
    }

    #[test]
    fn difference_needs_a_reason_and_a_reason_a_difference() {
        let known = reasons("- {test: fails, columns: [shim], why: It is so.}");
        let passes = &columns(&[])[0].1;
        let (lines, wrong) = differences(&columns(&["shim"]), passes, &known);
        assert_eq!(lines.last().unwrap(), "| [sig-apps] Job in a namespace fails | shim | It is so. |");
        assert!(wrong.is_empty(), "{wrong:?}");
        let (_, wrong) = differences(&columns(&["node"]), passes, &[]);
        assert!(wrong[0].starts_with("node: '[sig-apps] Job in a namespace fails' fails"), "{wrong:?}");
        assert!(differences(&columns(&[]), passes, &known).1[0].starts_with("'fails' passes"));
    }

    #[test]
    fn what_istios_sidecar_fails_alone_needs_no_reason() {
        let fails = &columns(&["none"])[0].1;
        let (lines, wrong) = differences(&columns(&["native", "shim"]), fails, &[]);
        assert!(lines.last().unwrap().contains("it fails without istio-aux, too"), "{lines:?}");
        assert!(wrong.is_empty(), "{wrong:?}");
        // It is no reason for a pod without a sidecar.
        assert_eq!(differences(&columns(&["node"]), fails, &[]).1.len(), 1);
    }

    #[test]
    fn test_that_fails_in_no_mesh_is_no_difference() {
        let columns = columns(&["none"]);
        assert_eq!(failures(&columns[0].1).last().unwrap(), "- [sig-apps] Job in a namespace fails");
        assert!(differences(&columns, &columns[1].1, &[]).0.is_empty());
    }
}
