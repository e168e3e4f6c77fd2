//! Finds the pod templates in objects that create pods.

use serde_json::{Value, json};

/// Locates a pod, or a pod template, in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    /// Points to the object with the pod's `metadata` and `spec` (a JSON Pointer).
    place: String,
    /// Is the restart policy that the controller gives the pod; `None` for the template's own.
    policy: Option<String>,
    /// Is false where the object has only the pod's metadata, in the field `podMetadata`.
    pub(crate) has_containers: bool,
}

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
        // The training operator's kinds, and the restart policy of replicas that set none (`SetDefaults_…` of v1.8).
        ("kubeflow.org", "TFJob") => of_replicas(object, "tfReplicaSpecs", "Never"),
        ("kubeflow.org", "PyTorchJob") => of_replicas(object, "pytorchReplicaSpecs", "OnFailure"),
        ("kubeflow.org", "MPIJob") => of_replicas(object, "mpiReplicaSpecs", "Never"),
        ("kubeflow.org", "XGBoostJob") => of_replicas(object, "xgbReplicaSpecs", "Never"),
        ("kubeflow.org", "PaddleJob") => of_replicas(object, "paddleReplicaSpecs", "OnFailure"),
        ("kubeflow.org", "MXJob") => of_replicas(object, "mxReplicaSpecs", "Never"),
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
    let templates = of(object).into_iter().filter(|template| template.has_containers);
    templates.map(|template| template.pod(object)).collect()
}

/// Locates the templates in a map of replicas.
fn of_replicas(object: &Value, field: &str, default_policy: &str) -> Vec<Template> {
    let replicas = object["spec"][field].as_object().into_iter().flatten();
    replicas
        .map(|(name, replica)| {
            let policy = match replica["restartPolicy"].as_str() {
                // The operator restarts such pods itself.
                Some("ExitCode") => "Never",
                Some(policy) => policy,
                // The MPI operator's own version has another default for launchers than the training operator's.
                None if object["apiVersion"] == "kubeflow.org/v2beta1" && name == "Launcher" => "OnFailure",
                None => default_policy,
            };
            let place = format!("/spec/{field}/{}/template", name.replace('~', "~0").replace('/', "~1"));
            Template { policy: Some(policy.to_owned()), ..Template::at(place) }
        })
        .collect()
}

fn of_job_set(object: &Value) -> Vec<Template> {
    let jobs = object["spec"]["replicatedJobs"].as_array().into_iter().flatten().enumerate();
    jobs.map(|(index, job)| {
        let policy = job["template"]["spec"]["template"]["spec"]["restartPolicy"].as_str();
        // The default of JobSet's webhook.
        let policy = Some(policy.unwrap_or("OnFailure").to_owned());
        Template { policy, ..Template::at(format!("/spec/replicatedJobs/{index}/template/spec/template")) }
    })
    .collect()
}

/// Locates `podMetadata`, which Argo's controller merges into the pod of each step.
fn of_workflow(place: &str) -> Vec<Template> {
    let policy = Some("Never".to_owned());
    vec![Template { place: place.to_owned(), policy, has_containers: false }]
}

impl Template {
    fn at(place: String) -> Self {
        Self { place, policy: None, has_containers: true }
    }

    /// Returns the pod that the controller creates from the template.
    pub(crate) fn pod(&self, object: &Value) -> Value {
        let place = object.pointer(&self.place).unwrap_or(&Value::Null);
        let mut pod = place.clone();
        if !self.has_containers {
            pod = json!({"spec": {"containers": [{"name": "main"}]}});
            if let Some(metadata) = place.get("podMetadata") {
                pod["metadata"] = metadata.clone();
            }
        }
        if let (Some(policy), Some(spec)) = (&self.policy, pod["spec"].as_object_mut()) {
            spec.insert("restartPolicy".to_owned(), json!(policy));
        }
        pod
    }

    /// Writes such a pod back into the object.
    pub(crate) fn put_back(&self, object: &mut Value, mut pod: Value) {
        let Some(place) = object.pointer_mut(&self.place) else { return };
        if !self.has_containers {
            if let Some(metadata) = pod.get_mut("metadata") {
                place["podMetadata"] = metadata.take();
            }
            return;
        }
        if let (Some(_), Some(spec)) = (&self.policy, pod["spec"].as_object_mut()) {
            match place["spec"].get("restartPolicy") {
                Some(policy) => spec.insert("restartPolicy".to_owned(), policy.clone()),
                // The other fields keep their order.
                None => spec.shift_remove("restartPolicy"),
            };
        }
        *place = pod;
    }
}
