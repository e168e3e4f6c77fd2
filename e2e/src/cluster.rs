//! A namespace on the cluster of `KUBECONFIG`, for one scenario.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use contract::names::{ENABLED, INJECTION_LABEL, LEGACY_INJECTION_LABEL, NODE, PROXY_LABEL, SHIM_CONTAINER};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, Pod, ServiceAccount};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::config::AuthInfo;
use kube::core::gvk::GroupVersionKind;
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};

/// A namespace label.
pub type Label = (&'static str, &'static str);

/// Lets Istio inject into a namespace.
pub const MESH: Label = ("istio-injection", "enabled");
/// Opts a namespace in.
pub const OPT_IN: Label = (INJECTION_LABEL, ENABLED);
/// Asks for proxies beside a namespace's pods.
pub const BESIDE: Label = (PROXY_LABEL, NODE);
/// Opts a namespace in, as earlier installations did.
pub const LEGACY_OPT_IN: Label = (LEGACY_INJECTION_LABEL, ENABLED);

/// How long a pod may take to start or end before a scenario fails. Two cores start a proxy in seconds, and ten at once
/// in less than a minute. A container that the runtime could not create is doubted for 150 s.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(4);

/// What a pod whose payload is short never takes, unless its shim has missed it and waits for it still.
const SLOW: Duration = Duration::from_secs(30);

const POLL_EVERY: Duration = Duration::from_millis(50);

/// Runs a scenario in a namespace of its own with these labels. The namespace is removed when the scenario has passed,
/// and kept for a look when it has not.
pub async fn scenario(name: &str, labels: &[Label], body: impl AsyncFnOnce(&Namespace)) {
    let namespace = Namespace::create(name, labels).await;
    body(&namespace).await;
    namespace.end().await;
}

/// A client for the cluster of `KUBECONFIG`.
pub async fn client() -> Client {
    match Client::try_default().await {
        Ok(client) => client,
        Err(error) => panic!("no cluster: {error}; next: make test-cluster, or set KUBECONFIG"),
    }
}

/// A client that does everything as a service account.
pub async fn client_as(namespace: &str, account: &str) -> Client {
    let mut config = Config::infer().await.expect("a cluster is configured");
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:{account}"));
    Client::try_from(config).expect("a client is made of it")
}

/// A client with a token of a service account.
pub async fn client_with_token_of(namespace: &str, account: &str) -> Client {
    let accounts: Api<ServiceAccount> = Api::namespaced(client().await, namespace);
    let request = accounts.create_token_request(account, &PostParams::default(), &TokenRequest::default()).await;
    let token = request.expect("the account has a token").status.expect("it is there").token;
    let mut config = Config::infer().await.expect("a cluster is configured");
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    Client::try_from(config).expect("a client is made of it")
}

/// A namespace of one scenario.
pub struct Namespace {
    client: Client,
    name: String,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("namespace {0} is kept; look at it with: kubectl -n {0} get pods", self.name);
        }
    }
}

impl Namespace {
    async fn create(scenario: &str, labels: &[Label]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let client = client().await;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() % 100_000_000);
        let name = format!("e2e-{scenario}-{since}{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let labels: Value = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let object = json!({"metadata": {"name": name, "labels": labels}});
        let namespaces: Api<NamespaceObject> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &from(object)).await.expect("the namespace is created");
        let namespace = Self { client, name };
        namespace.wait_for_service_account().await;
        namespace
    }

    /// A namespace that somebody else creates, once pods may be created in it. It is not removed.
    pub async fn found(name: &str) -> Self {
        let namespace = Self { client: client().await, name: name.to_owned() };
        namespace.wait_for_service_account().await;
        namespace
    }

    /// Pods are refused until the controller manager has made the namespace's account.
    async fn wait_for_service_account(&self) {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.name);
        self.until("the default service account", || async {
            accounts.get_opt("default").await.expect("accounts are read")
        })
        .await;
    }

    async fn end(self) {
        let namespaces: Api<NamespaceObject> = Api::all(self.client.clone());
        namespaces.delete(&self.name, &DeleteParams::default()).await.expect("the namespace is deleted");
    }

    /// The namespace's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates an object of any kind.
    pub async fn create_object(&self, object: Value) -> DynamicObject {
        self.try_create(object, &PostParams::default()).await.expect("the object is created")
    }

    /// What the API server would make of an object, with all its webhooks, and stores not.
    pub async fn dry_run(&self, object: Value) -> DynamicObject {
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        self.try_create(object, &parameters).await.expect("the dry run passes")
    }

    /// Creates an object of any kind, or returns the API server's refusal.
    pub async fn try_create(&self, object: Value, parameters: &PostParams) -> kube::Result<DynamicObject> {
        let api = self.objects(&object);
        api.create(parameters, &from(object)).await
    }

    /// The objects of the kind of this one.
    #[must_use]
    pub fn objects(&self, object: &Value) -> Api<DynamicObject> {
        let text = |field: &str| object[field].as_str().expect("an object has apiVersion and kind").to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        Api::namespaced_with(self.client.clone(), &self.name, &resource)
    }

    /// An object as it is now, by the kind and name of `like`.
    pub async fn get(&self, like: &Value) -> Value {
        let name = like["metadata"]["name"].as_str().expect("an object has a name");
        let object = self.objects(like).get(name).await.expect("the object is read");
        serde_json::to_value(object).expect("an object is JSON")
    }

    /// The same, where there is one.
    pub async fn find(&self, like: &Value) -> Option<Value> {
        let name = like["metadata"]["name"].as_str().expect("an object has a name");
        let object = self.objects(like).get_opt(name).await.expect("the object is read");
        object.map(|object| serde_json::to_value(object).expect("an object is JSON"))
    }

    /// The objects of the kind of `like` with a label, `key=value`.
    pub async fn list(&self, like: &Value, label: &str) -> Vec<Value> {
        let objects = self.objects(like).list(&ListParams::default().labels(label)).await.expect("objects are listed");
        objects.into_iter().map(|object| serde_json::to_value(object).expect("an object is JSON")).collect()
    }

    /// Changes an object, by the kind and name of `like`, as `kubectl patch --type=merge` does.
    pub async fn patch(&self, like: &Value, patch: Value) {
        let name = like["metadata"]["name"].as_str().expect("an object has a name");
        let patched = self.objects(like).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("the object is changed");
    }

    /// A Job.
    pub async fn job(&self, name: &str) -> Job {
        Api::namespaced(self.client.clone(), &self.name).get(name).await.expect("the Job is read")
    }

    /// Runs a pod to its end, and deletes it. Returns its final phase and how often its shim was started again. Prints what is known of
    /// one that fails or is slow.
    pub async fn run_pod(&self, pod: Value) -> (String, i32) {
        let began = Instant::now();
        let name = pod["metadata"]["name"].as_str().expect("a pod has a name").to_owned();
        self.create_object(pod).await;
        let phase = self.pod_until(&name, "the end", |pod| crate::PodView(pod).final_phase()).await;
        let pod = self.pod(&name).await;
        if phase != "Succeeded" || began.elapsed() >= SLOW {
            eprintln!("{}", self.describe_pod(&pod).await);
        }
        self.delete_pod(&name).await;
        (phase, crate::PodView(&pod).restarts(SHIM_CONTAINER).unwrap_or_default())
    }

    /// A pod.
    pub async fn pod(&self, name: &str) -> Pod {
        self.pods().get(name).await.expect("the pod is read")
    }

    /// Deletes an object, by the kind and name of `like`, and what belongs to it.
    pub async fn delete(&self, like: &Value) {
        let name = like["metadata"]["name"].as_str().expect("an object has a name");
        self.objects(like).delete(name, &DeleteParams::background()).await.expect("the object is deleted");
    }

    /// Whether there is a pod of this name.
    pub async fn has_pod(&self, name: &str) -> bool {
        self.pods().get_opt(name).await.expect("pods are read").is_some()
    }

    /// Deletes a pod.
    pub async fn delete_pod(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.expect("the pod is deleted");
    }

    /// The pods with a label, `key=value`.
    pub async fn pods_with(&self, label: &str) -> Vec<Pod> {
        self.pods().list(&ListParams::default().labels(label)).await.expect("the pods are listed").items
    }

    /// The pods in a final phase. The API server selects them, so asking often costs little.
    pub async fn finished_pods(&self) -> Vec<Pod> {
        let parameters = ListParams::default().fields("status.phase!=Pending,status.phase!=Running");
        self.pods().list(&parameters).await.expect("the pods are listed").items
    }

    /// Adds an ephemeral container to a pod, as `kubectl debug` does.
    pub async fn add_ephemeral_container(&self, pod: &str, container: Value) {
        let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
        let patched = self.pods().patch_ephemeral_containers(pod, &PatchParams::default(), &patch).await;
        patched.expect("the ephemeral container is added");
    }

    /// The one pod of a Job, once it exists.
    pub async fn pod_of_job(&self, job: &str) -> String {
        let label = format!("batch.kubernetes.io/job-name={job}");
        self.until(&format!("the pod of Job {job}"), || async { self.pods_with(&label).await.pop() }).await.name_any()
    }

    /// What a container has logged.
    pub async fn logs(&self, pod: &str, container: &str) -> String {
        self.try_logs(pod, container).await.expect("the log is read")
    }

    /// What a container has logged, where it has started.
    pub async fn try_logs(&self, pod: &str, container: &str) -> Option<String> {
        let parameters = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
        self.pods().logs(pod, &parameters).await.ok()
    }

    /// Waits for a pod of which `seen` returns something.
    pub async fn pod_until<T>(&self, pod: &str, what: &str, seen: impl Fn(&Pod) -> Option<T>) -> T {
        self.until(&format!("{what} of pod {pod}"), || async { seen(&self.pod(pod).await) }).await
    }

    /// Asks again and again until there is an answer, and fails naming `what` when there is none for too long.
    pub async fn until<T>(&self, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
        self.until_within(WAIT_TIMEOUT, what, ask).await
    }

    /// The same for what takes longer.
    pub async fn until_within<T>(&self, limit: Duration, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            assert!(began.elapsed() < limit, "waited {limit:?} for {what}{}", self.describe_unfinished_pods().await);
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Asserts that something keeps holding, asked every second.
    pub async fn holds_for(&self, long: Duration, what: &str, ask: impl AsyncFn() -> bool) {
        let began = Instant::now();
        while began.elapsed() < long {
            assert!(
                ask().await,
                "{what} no longer held after {:?}{}",
                began.elapsed(),
                self.describe_unfinished_pods().await
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The namespace's pods that have not succeeded, for a failure's message: a line each, and their shims' logs.
    pub async fn describe_unfinished_pods(&self) -> String {
        let pods = self.pods().list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        let mut all = String::new();
        for pod in pods.iter().filter(|pod| crate::PodView(pod).phase() != "Succeeded") {
            all = format!("{all}\n  {}", self.describe_pod(pod).await);
        }
        all
    }

    /// The state of a pod's containers in a line, and what its shim has logged, in its last two runs where it was restarted.
    pub async fn describe_pod(&self, pod: &Pod) -> String {
        let view = crate::PodView(pod);
        let mut text = view.in_a_line();
        let runs: &[bool] = if view.restarts(SHIM_CONTAINER) > Some(0) { &[true, false] } else { &[false] };
        for &previous in runs {
            let container = Some(SHIM_CONTAINER.to_owned());
            let parameters = LogParams { container, previous, ..LogParams::default() };
            let log = self.pods().logs(&pod.name_any(), &parameters).await.unwrap_or_default();
            text.extend(log.lines().map(|line| format!("\n    {line}")));
        }
        text
    }

    /// The namespace's pods.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }
}

fn from<T: for<'de> k8s_openapi::serde::Deserialize<'de>>(object: Value) -> T {
    serde_json::from_value(object).expect("the object is of its kind")
}

/// Stops a daemon of the one-node cluster and starts it again: the kubelet, containerd or the API server.
pub fn restart(daemon: &str) {
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster/cluster");
    let restarted = crate::command::run(cluster, &["restart", daemon], "");
    drop(crate::command::printed(&restarted));
}
