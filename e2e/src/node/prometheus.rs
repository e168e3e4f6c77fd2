//! Prometheus, which scrapes the agent from this machine.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{WithMetrics, state_directory};
use crate::command::run;

/// Scrapes until it is dropped.
pub struct Prometheus {
    process: Child,
    _data: TempDir,
    url: String,
}

impl Prometheus {
    /// Runs the program of the component `istio-suites`, with what the Prometheus operator makes of the chart's `PodMonitor`: the target's
    /// label `namespace` is the agent's.
    ///
    /// # Panics
    ///
    /// Panics where the component is not there.
    #[must_use]
    pub fn scraping(metrics: &WithMetrics) -> Self {
        let data = TempDir::new().expect("a directory");
        let configuration = data.path().join("prometheus.yml");
        let endpoint = metrics.endpoint();
        let scrape = json!({
            "job_name": "istio-aux-node",
            "metrics_path": endpoint["path"],
            "honor_labels": endpoint["honorLabels"],
            "scrape_interval": "30s",
            "static_configs": [{"targets": [metrics.target()], "labels": {"namespace": "istio-aux-node"}}],
        });
        fs::write(&configuration, json!({"scrape_configs": [scrape]}).to_string()).expect("it is written");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let process = Command::new(state_directory().join("istio-suites/bin/prometheus"))
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", data.path().display()))
            .arg(format!("--web.listen-address={free}"))
            .stderr(Stdio::null())
            .spawn()
            .expect("next: hack/cluster/cluster add istio-suites");
        Self { process, _data: data, url: format!("http://{free}/api/v1/query") }
    }

    /// Returns the value of a query with one result.
    #[must_use]
    pub fn value(&self, query: &str) -> Option<String> {
        let answer = run("curl", &["-sSf", "--get", "--data-urlencode", &format!("query={query}"), &self.url], "");
        let answer: Value = serde_json::from_slice(&answer.stdout).ok()?;
        let results = answer["data"]["result"].as_array()?;
        assert!(results.len() <= 1, "{query}: {answer}");
        results.first()?["value"][1].as_str().map(str::to_owned)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
