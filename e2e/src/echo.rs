//! Clients with long gRPC streams, short gRPC calls, `WebSockets` and TCP connections, and their server.

use serde_json::{Value, json};

use crate::Namespace;
use crate::manifests::{deployment, each_by_its_connection, pod_spec, python, service, with_memory};

const PROGRAM: &str = include_str!("echo.py");
/// Names the client's reports, each of which is a file.
const KINDS: [&str; 4] = ["stream", "calls", "websocket", "tcp"];
/// Runs the client, and again once its reports have been removed.
const CLIENT: &str = "while :; do [ -e /memory/stream ] || python3 -c \"$PROGRAM\" client; sleep 1; done";

/// Returns the Deployment `echo` with its Service.
pub fn server() -> Vec<Value> {
    let mut serve = python("main", &["python3", "-c", PROGRAM, "server"]);
    serve["readinessProbe"] = json!({"tcpSocket": {"port": 50051}, "periodSeconds": 1});
    let mut service = service("echo", 50051, 50051);
    service["spec"]["ports"] = json!([{"name": "grpc", "port": 50051}, {"name": "http-websocket", "port": 8080}, {"name": "tcp", "port": 9000}]);
    let deployment = deployment("echo", &pod_spec("Always", &[serve]));
    [service, deployment].into_iter().chain(each_by_its_connection("echo")).collect()
}

/// Returns the Deployment `echo-client`, whose pods send a message of each kind, and wait so many seconds.
pub fn client(seconds: &str) -> Value {
    let mut client = python("main", &["sh", "-c", CLIENT]);
    client["env"] = json!([{"name": "PROGRAM", "value": PROGRAM}, {"name": "SECONDS_BETWEEN", "value": seconds}]);
    deployment("echo-client", &with_memory(pod_spec("Always", &[client])))
}

/// A pod of [`client`].
pub struct EchoClient<'a> {
    /// The pod's namespace.
    pub ns: &'a Namespace,
    /// The pod's name, or `deployment/echo-client` where it is the only one.
    pub pod: String,
}

impl EchoClient<'_> {
    /// Returns what it reports: how many were echoed so far, that all were, or an error.
    fn reports(&self) -> [String; 4] {
        let script = KINDS.map(|kind| format!("cat /memory/{kind} 2>/dev/null; printf '\\0'; ")).concat();
        let printed = self.ns.run_script(&self.pod, &script);
        let mut reports = printed.split('\0').map(|report| report.trim().to_owned());
        KINDS.map(|_| reports.next().unwrap_or_default())
    }

    /// Waits until so many more of each kind were echoed.
    pub async fn until_echoed(&self, more: u32) {
        let counts = |reports: &[String; 4]| reports.each_ref().map(|report| report.parse::<u32>().ok());
        let before = counts(&self.reports()).map(Option::unwrap_or_default);
        let is_so = async || {
            let reports = self.reports();
            let has_more = |(now, before): (Option<u32>, u32)| now.is_some_and(|now| now >= before + more);
            assert!(!reports.iter().any(|report| is_error(report)), "{}: {reports:?}", self.pod);
            counts(&reports).into_iter().zip(before).all(has_more).then_some(())
        };
        self.ns.until(&format!("{more} more echoes of each kind for {}", self.pod), is_so).await;
    }

    /// Waits until all have ended, and returns what is reported.
    pub async fn ends(&self) -> [String; 4] {
        let has_ended = |report: &String| report == "all" || is_error(report);
        let have_ended = async || Some(self.reports()).filter(|all| all.iter().all(has_ended));
        self.ns.until(&format!("the ends of {}", self.pod), have_ended).await
    }

    /// Ends all, and fails unless each has gone on until then.
    pub async fn end(&self) {
        self.ns.run_script(&self.pod, "touch /memory/end");
        assert_eq!(self.ends().await, ["all"; 4], "{}", self.pod);
    }

    /// Begins again once all have ended.
    pub fn begin_again(&self) {
        self.ns.run_script(&self.pod, "rm /memory/*");
    }
}

/// Returns whether a report says that something broke.
pub fn is_error(report: &str) -> bool {
    report.contains(" after ")
}
