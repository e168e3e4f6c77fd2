//! The table of when the awaited containers have ended for good.

use inject::report_ended;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Table {
    pod: Value,
    cases: Vec<Case>,
}

/// The fields are described in the table.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Case {
    #[serde(rename = "case")]
    name: String,
    pod: Value,
    ended: Option<String>,
    /// Read by the test on a cluster.
    #[serde(rename = "since")]
    _since: Option<String>,
    #[serde(default, rename = "offline")]
    _offline: bool,
}

#[test]
fn annotation_says_what_the_kubelet_reports() {
    let table: Table = serde_saphyr::from_str(include_str!("ended.yaml")).unwrap();
    let mut failures = Vec::new();
    for case in table.cases {
        let mut pod = table.pod.clone();
        json_patch::merge(&mut pod, &case.pod);
        for attempt in ["first", "again"] {
            let decision = report_ended(&serde_json::from_value(pod.clone()).unwrap());
            json_patch::patch(&mut pod, &decision.patch).unwrap();
            let found = pod["metadata"]["annotations"]["istio-aux.io/ended"].as_str().map(str::to_owned);
            if found != case.ended || (attempt == "again" && !decision.patch.is_empty()) {
                failures.push(format!("{}, {attempt}: {found:?}, not {:?}", case.name, case.ended));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
