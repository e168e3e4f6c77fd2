//! The environment of a sandbox' proxy: istiod's, and what is different outside of the pod.

use std::collections::BTreeMap;

use contract::names::{PASSED_ANNOTATION_LIMIT, PROBES_ANNOTATION, SCRAPES_ANNOTATION};
use contract::scrape;
use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ports::{Ports, STANDARD};
use crate::pod::PodFacts;

/// Names what makes Envoy, from 1.40 on, close `WebSockets` within 45 s after an upgrade (`--drain-time-s`). They go on
/// for the agent's drain timeout.
const CLOSES_STREAMS: &str = "envoy.reloadable_features.use_connection_event_drain";

/// Returns the environment of the proxy with these ports.
pub(super) fn environment(
    pod: &PodFacts,
    rendered: &BTreeMap<String, String>,
    ports: Ports,
) -> BTreeMap<String, String> {
    let config = rendered.get("PROXY_CONFIG").map_or("{}", String::as_str);
    let dns = (ports.dns != STANDARD.dns).then(|| format!("localhost:{}", ports.dns));
    let own = [
        // XDS with the pod's own certificate, so that the proxy needs no token.
        ("PROV_CERT", Some("/var/run/secrets/workload-spiffe-credentials".to_owned())),
        // Without it, pilot-agent asks the metadata servers of clouds before it starts Envoy.
        ("CLOUD_PLATFORM", Some("none".to_owned())),
        ("PROXY_CONFIG", Some(proxy_config(config, ports).to_string())),
        ("ENVOY_STATUS_PORT", Some(ports.readiness.to_string())),
        ("ENVOY_PROMETHEUS_PORT", Some(ports.metrics.to_string())),
        // The pilot-agent of Istio 1.22 serves istioctl on one more port, which two proxies of a pod cannot share.
        ("PROXY_XDS_DEBUG_VIA_AGENT", Some("false".to_owned())),
        ("DNS_PROXY_ADDR", dns),
        ("ISTIO_KUBE_APP_PROBERS", probes(pod)),
        (
            "ISTIO_PROMETHEUS_ANNOTATIONS",
            scrapes(pod).or_else(|| rendered.get("ISTIO_PROMETHEUS_ANNOTATIONS").cloned()),
        ),
        ("GOMEMLIMIT", pod.memory.map(|bytes| bytes.to_string())),
    ];
    let mut variables = rendered.clone();
    for (name, value) in own {
        match value {
            Some(value) => variables.insert(name.to_owned(), value),
            None => variables.remove(name),
        };
    }
    variables
}

/// Returns the probes that pilot-agent makes; `None` for those that would make it exit.
fn probes(pod: &PodFacts) -> Option<String> {
    passed(pod, PROBES_ANNOTATION, |probes: &BTreeMap<String, Probe>| {
        probes.iter().all(|(path, probe)| is_served(path, probe))
    })
}

/// Returns true for a probe that pilot-agent serves: `validateAppKubeProber` in `pilot/cmd/pilot-agent/status/server.go`.
fn is_served(path: &str, probe: &Probe) -> bool {
    let is_known = match path.split('/').collect::<Vec<_>>()[..] {
        ["", "app-health", container, kind] => !container.is_empty() && ["livez", "readyz", "startupz"].contains(&kind),
        _ => false,
    };
    let http = probe.http_get.as_ref().map(|http| &http.port);
    let tcp = probe.tcp_socket.as_ref().map(|tcp| &tcp.port);
    let has_number = [http, tcp].into_iter().flatten().all(|port| matches!(port, IntOrString::Int(_)));
    let actions = [http.is_some(), tcp.is_some(), probe.grpc.is_some()];
    is_known && has_number && actions.into_iter().filter(|is_there| *is_there).count() == 1
}

/// Returns what pilot-agent scrapes of the application; `None` for what would make it exit: no JSON, or a port of its own.
fn scrapes(pod: &PodFacts) -> Option<String> {
    passed(pod, SCRAPES_ANNOTATION, is_scraped)
}

/// Returns true for the fields that the webhook writes, and an application's port.
fn is_scraped(scrapes: &BTreeMap<String, String>) -> bool {
    let port = scrape::port(scrapes.get("port").map(String::as_str));
    scrapes.keys().all(|name| ["scrape", "path", "port"].contains(&name.as_str()))
        && port.is_ok_and(|port| !Ports::has_pilot_agent(port))
}

/// Returns an annotation that the webhook has written for pilot-agent; `None` for what a pod may have written. Fields of other names are
/// left out: Go's JSON takes `GRPC` for `grpc`.
fn passed<T: DeserializeOwned + Serialize>(
    pod: &PodFacts,
    name: &str,
    is_usable: impl FnOnce(&T) -> bool,
) -> Option<String> {
    let text = pod.annotation(name)?;
    let value =
        serde_json::from_str(text).ok().filter(|value| text.len() <= PASSED_ANNOTATION_LIMIT && is_usable(value));
    if value.is_none() {
        tracing::warn!("the annotation {name} of a pod is not the webhook's, and is left out");
    }
    serde_json::to_string(&value?).ok()
}

/// Returns the proxy's settings with its own ports, and without [`CLOSES_STREAMS`].
fn proxy_config(config: &str, ports: Ports) -> Value {
    let mut config: Map<String, Value> = serde_json::from_str(config).unwrap_or_default();
    config.insert("statusPort".to_owned(), ports.status.into());
    config.insert("proxyAdminPort".to_owned(), ports.admin.into());
    let mut values = match config.remove("runtimeValues") {
        Some(Value::Object(values)) => values,
        _ => Map::new(),
    };
    values.insert(CLOSES_STREAMS.to_owned(), "false".into());
    config.insert("runtimeValues".to_owned(), values.into());
    config.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runtime_values_of_the_mesh_are_kept() {
        let values = |config: &str| proxy_config(config, STANDARD)["runtimeValues"].take();
        for (given, expected) in [
            ("{}", json!({CLOSES_STREAMS: "false"})),
            (r#"{"runtimeValues": {"a": "1"}}"#, json!({"a": "1", CLOSES_STREAMS: "false"})),
            (&format!(r#"{{"runtimeValues": {{"{CLOSES_STREAMS}": "true"}}}}"#), json!({CLOSES_STREAMS: "false"})),
        ] {
            assert_eq!(values(given), expected, "{given}");
        }
    }

    #[test]
    fn probes_of_other_origin_are_left_out() {
        let long = format!(r#"{{"/app-health/main/livez": "{}"}}"#, "a".repeat(PASSED_ANNOTATION_LIMIT));
        let annotated = |text: &str| PodFacts::annotated(PROBES_ANNOTATION, text);
        for probe in [r#"{"httpGet": {"port": 80}}"#, r#"{"tcpSocket": {"port": 80}}"#, r#"{"grpc": {"port": 80}}"#] {
            let of_probe = |probe: &str| format!(r#"{{"/app-health/main/livez": {probe}}}"#);
            let expected: Value = serde_json::from_str(&of_probe(probe)).unwrap();
            let passed =
                probes(&annotated(&of_probe(&probe.replacen('{', r#"{"HTTPGet": {"port": 1}, "#, 1)))).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&passed).unwrap(), expected);
        }
        let http = r#"{"httpGet": {"port": 80}}"#;
        let paths =
            ["/other", "/app-health/x", "/app-health//livez", "/app-health/main/other", "/app-health/a/b/livez"];
        let of_paths = paths.map(|path| format!(r#"{{"{path}": {http}}}"#));
        let bad = [
            "null",
            "{}",
            r#"{"httpGet": {"port": "web"}}"#,
            r#"{"tcpSocket": {"port": "web"}}"#,
            r#"{"httpGet": {"port": 80}, "grpc": {"port": 80}}"#,
            r#"{"httpGet": {"port": 80, "path": 1}}"#,
        ];
        let of_probes = bad.map(|probe| format!(r#"{{"/app-health/main/livez": {probe}}}"#));
        for text in of_paths.into_iter().chain(of_probes).chain([long, String::new(), "[]".to_owned()]) {
            assert_eq!(probes(&annotated(&text)), None, "{text}");
        }
    }

    #[test]
    fn scrapes_are_the_webhooks_or_else_istiods() {
        let rendered = BTreeMap::from([("ISTIO_PROMETHEUS_ANNOTATIONS".to_owned(), "istiod's".to_owned())]);
        let given = |text: &str| {
            let variables = environment(&PodFacts::annotated(SCRAPES_ANNOTATION, text), &rendered, Ports::of(0));
            variables["ISTIO_PROMETHEUS_ANNOTATIONS"].clone()
        };
        for text in [r#"{"path":"/m","port":"8080"}"#, r#"{"scrape":"true"}"#] {
            assert_eq!(given(text), text);
        }
        let long = format!(r#"{{"path": "{}"}}"#, "a".repeat(PASSED_ANNOTATION_LIMIT));
        let of_other_names = [r#"{"targets": "x"}"#, r#"{"port": "8080", "PORT": "15020"}"#];
        let of_no_application = ["web", "0", "15120", "15090"].map(|port| format!(r#"{{"port": "{port}"}}"#));
        let bad = ["", "[]", r#"{"port": 1}"#, long.as_str()].into_iter().chain(of_other_names);
        for text in bad.chain(of_no_application.iter().map(String::as_str)) {
            assert_eq!(given(text), "istiod's", "{text}");
        }
    }
}
