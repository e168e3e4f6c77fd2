//! Finds the pod templates in objects that create pods.

use serde_json::{Value, json};

/// Locates a pod, or a pod template, in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    /// Points to the object with the pod's `metadata` and `spec` (a JSON Pointer).
    place: String,
    /// Names the field with the pod's metadata.
    metadata: &'static str,
    /// Is the restart policy that the controller gives the pod; `None` for the template's own.
    policy: Option<String>,
    has_containers: bool,
}

/// Describes a kind with a map of replicas, each with a template, and the restart policy of replicas that set none.
struct Replicas {
    kind: &'static str,
    field: &'static str,
    policy: &'static str,
}

/// Lists the training operator's kinds (`SetDefaults_…` of v1.8).
const REPLICAS: [Replicas; 6] = [
    Replicas { kind: "TFJob", field: "tfReplicaSpecs", policy: "Never" },
    Replicas { kind: "PyTorchJob", field: "pytorchReplicaSpecs", policy: "OnFailure" },
    Replicas { kind: "MPIJob", field: "mpiReplicaSpecs", policy: "Never" },
    Replicas { kind: "XGBoostJob", field: "xgbReplicaSpecs", policy: "Never" },
    Replicas { kind: "PaddleJob", field: "paddleReplicaSpecs", policy: "OnFailure" },
    Replicas { kind: "MXJob", field: "mxReplicaSpecs", policy: "Never" },
];

/// Finds the pods and templates of an object; none if it is of another kind.
pub(crate) fn of(object: &Value) -> Vec<Template> {
    let group = object["apiVersion"].as_str().unwrap_or_default().split_once('/').map_or("", |(group, _)| group);
    let kind = object["kind"].as_str().unwrap_or_default();
    match (group, kind) {
        ("", "Pod") => vec![Template::at(String::new())],
        ("", "PodTemplate") => vec![Template::at("/template".to_owned())],
        ("", "ReplicationController")
        | ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch", "Job") => vec![Template::at("/spec/template".to_owned())],
        ("batch", "CronJob") => vec![Template::at("/spec/jobTemplate/spec/template".to_owned())],
        ("jobset.x-k8s.io", "JobSet") => of_job_set(object),
        ("kubeflow.org", kind) => REPLICAS
            .iter()
            .find(|replicas| replicas.kind == kind)
            .map_or_else(Vec::new, |known| of_replicas(object, known)),
        ("argoproj.io", "Workflow" | "WorkflowTemplate" | "ClusterWorkflowTemplate") => of_workflow("/spec"),
        ("argoproj.io", "CronWorkflow") => of_workflow("/spec/workflowSpec"),
        _ => Vec::new(),
    }
    .into_iter()
    .filter(|template| object.pointer(&template.place).is_some_and(Value::is_object))
    .collect()
}

/// Returns the pod templates of an object, as pods.
pub(crate) fn pods_of(object: &Value) -> Vec<Value> {
    let templates = of(object).into_iter().filter(Template::has_containers);
    templates.map(|template| template.pod(object)).collect()
}

fn of_replicas(object: &Value, known: &Replicas) -> Vec<Template> {
    let replicas = object["spec"][known.field].as_object().into_iter().flatten();
    replicas
        .map(|(name, replica)| {
            let policy = match replica["restartPolicy"].as_str() {
                // The operator restarts such pods itself.
                Some("ExitCode") => "Never",
                Some(policy) => policy,
                // The MPI operator's own version has another default for launchers than the training operator's.
                None if object["apiVersion"] == "kubeflow.org/v2beta1" && name == "Launcher" => "OnFailure",
                None => known.policy,
            };
            let place = format!("/spec/{}/{}/template", known.field, name.replace('~', "~0").replace('/', "~1"));
            Template { policy: Some(policy.to_owned()), ..Template::at(place) }
        })
        .collect()
}

fn of_job_set(object: &Value) -> Vec<Template> {
    let jobs = object["spec"]["replicatedJobs"].as_array().map_or(0, Vec::len);
    let at = |job| format!("/spec/replicatedJobs/{job}/template/spec/template");
    let policy = |place: &str| {
        let policy = object.pointer(place).and_then(|template| template["spec"]["restartPolicy"].as_str());
        // The default of JobSet's webhook.
        policy.unwrap_or("OnFailure").to_owned()
    };
    (0..jobs).map(at).map(|place| Template { policy: Some(policy(&place)), ..Template::at(place) }).collect()
}

/// Locates `podMetadata`, which Argo's controller merges into the pod of each step.
fn of_workflow(place: &str) -> Vec<Template> {
    let policy = Some("Never".to_owned());
    vec![Template { metadata: "podMetadata", policy, has_containers: false, ..Template::at(place.to_owned()) }]
}

impl Template {
    fn at(place: String) -> Self {
        Self { place, metadata: "metadata", policy: None, has_containers: true }
    }

    /// Returns true if the template has the pod's containers.
    pub(crate) fn has_containers(&self) -> bool {
        self.has_containers
    }

    /// Returns the pod that the controller creates from the template.
    pub(crate) fn pod(&self, object: &Value) -> Value {
        let place = object.pointer(&self.place).unwrap_or(&Value::Null);
        let mut pod =
            if self.has_containers { place.clone() } else { json!({"spec": {"containers": [{"name": "main"}]}}) };
        if let Some(metadata) = place.get(self.metadata) {
            pod["metadata"] = metadata.clone();
        }
        if let (Some(policy), Some(spec)) = (&self.policy, pod["spec"].as_object_mut()) {
            spec.insert("restartPolicy".to_owned(), json!(policy));
        }
        pod
    }

    /// Writes such a pod back into the object.
    pub(crate) fn put_back(&self, object: &mut Value, mut pod: Value) {
        let Some(place) = object.pointer_mut(&self.place) else { return };
        if self.has_containers {
            if self.policy.is_some() {
                put(&mut pod["spec"], "restartPolicy", place["spec"].get("restartPolicy").cloned());
            }
            *place = pod;
        } else {
            let metadata = pod.get_mut("metadata").map(Value::take);
            put(place, self.metadata, metadata);
        }
    }
}

/// Sets a field, or removes it.
fn put(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(map) = object.as_object_mut() else { return };
    match value {
        Some(value) => map.insert(field.to_owned(), value),
        // The other fields keep their order.
        None => map.shift_remove(field),
    };
}
