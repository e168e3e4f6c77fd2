//! Prometheus' scrapes of a pod that takes mutual TLS only. They are sent to pilot-agent, which merges the application's metrics
//! with the proxy's, as Istio's injector does. The node agent passes the original port and path to it, from an annotation.

use contract::names::{
    DEFAULT_STATUS_PORT, MERGE_METRICS_ANNOTATION, SCRAPE_ANNOTATION, SCRAPE_PATH_ANNOTATION, SCRAPE_PORT_ANNOTATION,
    SCRAPE_TARGETS_ANNOTATION, SCRAPES_ANNOTATION,
};
use contract::scrape::{self, Unscraped};
use serde_json::{Map, Value};

use super::{Room, is_false};
use crate::patch::PatchBuilder;
use crate::pod::Pod;

/// The path at which pilot-agent serves the merged metrics.
const MERGED: &str = "/stats/prometheus";

/// Sends the scrapes to pilot-agent. Returns a warning where that cannot be done.
pub(super) fn send_to_pilot_agent(pod: &Pod, patch: &mut PatchBuilder, room: &mut Room) -> Option<&'static str> {
    let status_port = DEFAULT_STATUS_PORT.to_string();
    let port = pod.annotation(SCRAPE_PORT_ANNOTATION);
    if is_false(pod, SCRAPE_ANNOTATION) || is_false(pod, MERGE_METRICS_ANNOTATION) || port == Some(&status_port) {
        return None;
    }
    match scrape::port(port) {
        Ok(_) => {}
        Err(Unscraped::NotANumber) => {
            return Some("istio-aux: prometheus.io/port is not a port number: Prometheus is not sent to the proxy");
        }
        Err(Unscraped::Reserved) => {
            return Some(
                "istio-aux: prometheus.io/port is one of the proxy's own: Prometheus is not sent to the proxy",
            );
        }
    }
    let keys = [("scrape", SCRAPE_ANNOTATION), ("path", SCRAPE_PATH_ANNOTATION), ("port", SCRAPE_PORT_ANNOTATION)];
    let given = keys.into_iter().filter_map(|(name, key)| Some((name.to_owned(), pod.annotation(key)?.into())));
    let given: Map<String, Value> = given.collect();
    // Istio's own annotation takes precedence, and its injector reads it.
    let is_original = !given.is_empty() && pod.annotation(SCRAPE_TARGETS_ANNOTATION).is_none();
    let originals = is_original.then(|| Value::Object(given).to_string());
    let mut annotations =
        vec![(SCRAPE_ANNOTATION, "true"), (SCRAPE_PORT_ANNOTATION, &status_port), (SCRAPE_PATH_ANNOTATION, MERGED)];
    annotations.extend(originals.as_deref().map(|originals| (SCRAPES_ANNOTATION, originals)));
    if !room.take(&annotations) {
        return Some("istio-aux: Prometheus is not sent to the proxy: its annotations are too long");
    }
    for (key, value) in annotations {
        patch.annotation(key, value);
    }
    None
}

#[cfg(test)]
mod tests {
    use contract::names::PASSED_ANNOTATION_LIMIT;
    use serde_json::json;

    use super::super::tests::{a_pod, decided};
    use super::*;

    fn annotated(annotations: &Value) -> Value {
        a_pod(&json!({"metadata": {"annotations": annotations}}))
    }

    #[test]
    fn prometheus_is_sent_to_pilot_agent_which_gets_the_original() {
        let given = json!({"prometheus.io/port": "8080", "prometheus.io/path": "/m"});
        let (pod, decision) = decided(annotated(&given));
        let expected = json!({
            "prometheus.io/scrape": "true", "prometheus.io/port": "15020", "prometheus.io/path": "/stats/prometheus",
            "istio-aux.io/prometheus": r#"{"path":"/m","port":"8080"}"#,
        });
        assert_eq!((&pod["metadata"]["annotations"], decision.warnings.len()), (&expected, 0));
    }

    #[test]
    fn proxy_of_an_application_without_metrics_is_scraped_too() {
        let (pod, _) = decided(a_pod(&json!({})));
        let annotations = pod["metadata"]["annotations"].as_object().unwrap();
        assert_eq!((annotations.len(), &annotations["prometheus.io/port"]), (3, &json!("15020")));
    }

    #[test]
    fn several_targets_are_left_to_istios_injector() {
        let given = json!({"prometheus.io/port": "1", "prometheus.istio.io/scrape-targets": "1:/a,2:/b"});
        let (pod, _) = decided(annotated(&given));
        let annotations = pod["metadata"]["annotations"].as_object().unwrap();
        assert_eq!((annotations.len(), &annotations["prometheus.io/port"]), (4, &json!("15020")));
    }

    #[test]
    fn pods_that_opt_out_or_have_no_port_are_scraped_as_before() {
        let opted_out = [
            json!({"prometheus.io/scrape": "false", "prometheus.io/port": "1"}),
            json!({"prometheus.istio.io/merge-metrics": "false", "prometheus.io/port": "1"}),
            json!({"prometheus.io/port": "15020"}),
        ];
        for given in opted_out {
            let (pod, decision) = decided(annotated(&given));
            assert_eq!((&pod["metadata"]["annotations"], decision.warnings.len()), (&given, 0));
        }
        let no_number = ["", "web", "0", "65536"].map(|port| (port, "is not a port number"));
        let own = ["15090", "015020"].map(|port| (port, "is one of the proxy's own"));
        for (port, warning) in no_number.into_iter().chain(own) {
            let given = json!({"prometheus.io/port": port});
            let (pod, decision) = decided(annotated(&given));
            assert_eq!(pod["metadata"]["annotations"], given);
            assert!(decision.warnings.concat().contains(warning), "{:?}", decision.warnings);
        }
    }

    #[test]
    fn annotations_never_exceed_the_limit_of_the_api_server() {
        let long = "a".repeat(PASSED_ANNOTATION_LIMIT);
        let full = "a".repeat(super::super::ANNOTATIONS_LIMIT - 50);
        for given in [json!({"prometheus.io/path": long}), json!({"other": full})] {
            let (pod, decision) = decided(annotated(&given));
            assert!(pod["metadata"]["annotations"] == given, "{:.100}", pod["metadata"]["annotations"].to_string());
            assert!(decision.warnings.concat().contains("annotations are too long"), "{:?}", decision.warnings);
        }
    }
}
