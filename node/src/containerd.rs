//! containerd's API, in a namespace of its own, so that the kubelet sees none of these containers; and the CRI, read only.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use cni::logger::LOG_COMMAND;
use prost_types::Any;
use serde_json::Value;
use tokio::sync::Semaphore;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::api::containers::containers_client::ContainersClient;
use crate::api::containers::{
    Container, CreateContainerRequest, DeleteContainerRequest, ListContainersRequest, container::Runtime,
};
use crate::api::cri::runtime_service_client::RuntimeServiceClient;
use crate::api::cri::{ListPodSandboxRequest, NamespaceMode, PodSandboxState, PodSandboxStatusRequest, StatusRequest};
use crate::api::tasks::tasks_client::TasksClient;
use crate::api::tasks::{
    CreateTaskRequest, DeleteProcessRequest, DeleteTaskRequest, ExecProcessRequest, GetRequest, KillRequest,
    StartRequest, Status as TaskStatus, WaitRequest,
};

/// containerd's namespace for the proxies.
const NAMESPACE: &str = "istio-aux";
const RUNTIME: &str = "io.containerd.runc.v2";
const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// Names a container's first process, as opposed to one of [`Containerd::run`].
const FIRST_PROCESS: &str = "";
const SIGKILL: u32 = 9;
/// containerd's own limit for the messages that it sends.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Says which call to containerd failed, and why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be used.
    #[error("containerd's socket")]
    Connect(#[from] tonic::transport::Error),
    /// containerd returned an error.
    #[error("containerd could not {what}: {}", cause.message())]
    Call {
        /// The call.
        what: &'static str,
        /// containerd's response.
        cause: Status,
    },
}

impl Error {
    /// Returns true if the container or its process does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Call { cause, .. } if cause.code() == Code::NotFound)
    }
}

/// Describes the sandbox of a pod, as the runtime lists it for the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// The runtime's id.
    pub id: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// True while the sandbox runs.
    pub is_ready: bool,
}

/// Holds a connection to containerd, which is made again after a restart of containerd.
#[derive(Debug, Clone)]
pub struct Containerd {
    channel: Channel,
    /// Admits one list of sandboxes at a time: it has the annotations of every pod of the node.
    listing: Arc<Semaphore>,
}

type Namespaced = InterceptedService<Channel, InNamespace>;

impl Containerd {
    /// Uses a socket, which need not exist yet.
    pub fn at(socket: &Path) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        Ok(Self { channel: endpoint.connect_lazy(), listing: Arc::new(Semaphore::new(1)) })
    }

    /// Creates a container with an OCI spec, whose process waits for [`Self::start`]. A process of `logger` writes its output to
    /// `log`: containerd's own writer stops at the first error, and has no limit (`binary://` in containerd's `core/runtime`).
    pub async fn create(
        &self,
        id: &str,
        labels: HashMap<String, String>,
        spec: &Value,
        logger: &Path,
        log: &Path,
    ) -> Result<(), Error> {
        let container_id = id.to_owned();
        let output = output(logger, log);
        let container = Container {
            id: container_id.clone(),
            labels,
            runtime: Some(Runtime { name: RUNTIME.into(), options: None }),
            spec: Some(json_of(SPEC_TYPE, spec)),
        };
        let request = CreateContainerRequest { container: Some(container) };
        self.containers().create(request).await.map_err(call("create a container"))?;
        let request = CreateTaskRequest { container_id, stdout: output.clone(), stderr: output };
        self.tasks().create(request).await.map_err(call("create a task"))?;
        Ok(())
    }

    /// Starts the process of a container.
    pub async fn start(&self, id: &str) -> Result<(), Error> {
        self.start_process(id, FIRST_PROCESS).await
    }

    /// Waits for the end of a container's process, and returns its exit status.
    pub async fn wait(&self, id: &str) -> Result<u32, Error> {
        self.wait_for_process(id, FIRST_PROCESS).await
    }

    /// Runs one more process in a container, also in one whose own process waits for [`Self::start`], and returns its exit status.
    pub async fn run(&self, id: &str, name: &str, process: &Value, logger: &Path, log: &Path) -> Result<u32, Error> {
        // A start that was given up may have left it.
        self.remove_process(id, name).await?;
        let output = output(logger, log);
        let request = ExecProcessRequest {
            container_id: id.to_owned(),
            stdout: output.clone(),
            stderr: output,
            spec: Some(json_of(PROCESS_TYPE, process)),
            exec_id: name.to_owned(),
        };
        self.tasks().exec(request).await.map_err(call("add a process"))?;
        let ended = async {
            self.start_process(id, name).await?;
            self.wait_for_process(id, name).await
        };
        let status = ended.await;
        self.delete_process(id, name).await?;
        status
    }

    async fn start_process(&self, id: &str, name: &str) -> Result<(), Error> {
        let request = StartRequest { container_id: id.to_owned(), exec_id: name.to_owned() };
        self.tasks().start(request).await.map_err(call("start a process"))?;
        Ok(())
    }

    async fn wait_for_process(&self, id: &str, name: &str) -> Result<u32, Error> {
        let request = WaitRequest { container_id: id.to_owned(), exec_id: name.to_owned() };
        let response = self.tasks().wait(request).await.map_err(call("wait for a process"))?;
        Ok(response.into_inner().exit_status)
    }

    /// Kills and removes a process that was added. Succeeds if it does not exist.
    async fn remove_process(&self, id: &str, name: &str) -> Result<(), Error> {
        let [container_id, exec_id] = [id, name].map(str::to_owned);
        let kill = KillRequest { container_id, exec_id, signal: SIGKILL, all: false };
        // One that was not started cannot be killed, but deleted.
        if self.tasks().kill(kill).await.is_ok() {
            found(self.wait_for_process(id, name).await)?;
        }
        self.delete_process(id, name).await
    }

    async fn delete_process(&self, id: &str, name: &str) -> Result<(), Error> {
        let [container_id, exec_id] = [id, name].map(str::to_owned);
        let request = DeleteProcessRequest { container_id, exec_id };
        found(self.tasks().delete_process(request).await.map_err(call("delete a process")))?;
        Ok(())
    }

    /// Kills a container's processes and removes it. Succeeds if it does not exist.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        let exec_id = FIRST_PROCESS.to_owned();
        let kill = KillRequest { container_id: id.to_owned(), exec_id, signal: SIGKILL, all: true };
        if found(self.tasks().kill(kill).await.map_err(call("kill a task")))?.is_some() {
            found(self.wait(id).await)?;
        }
        let task = DeleteTaskRequest { container_id: id.to_owned() };
        found(self.tasks().delete(task).await.map_err(call("delete a task")))?;
        let container = DeleteContainerRequest { id: id.to_owned() };
        found(self.containers().delete(container).await.map_err(call("delete a container")))?;
        Ok(())
    }

    /// Returns the labels of the namespace's containers that a filter matches, by their ids; of all without a filter. They come one
    /// by one: with their specs, all together may be larger than a message.
    pub async fn list(&self, filters: &[&str]) -> Result<HashMap<String, HashMap<String, String>>, Error> {
        let request = ListContainersRequest { filters: filters.iter().map(ToString::to_string).collect() };
        let mut stream = self.containers().list_stream(request).await.map_err(call("list containers"))?.into_inner();
        let mut found = HashMap::new();
        while let Some(message) = stream.message().await.map_err(call("list containers"))? {
            found.extend(message.container.map(|container| (container.id, container.labels)));
        }
        Ok(found)
    }

    /// Returns the PID of a container's process; `None` if it does not run.
    pub async fn pid(&self, id: &str) -> Result<Option<u32>, Error> {
        let request = GetRequest { container_id: id.to_owned() };
        let task = found(self.tasks().get(request).await.map_err(call("read a task")))?;
        let process = task.and_then(|response| response.into_inner().process);
        process.map_or(Ok(None), |process| pid_of(process.status(), process.pid))
    }

    /// Lists the sandboxes of a runtime handler. One whose network is being set up is not among them yet.
    pub async fn sandboxes(&self, handler: &str) -> Result<Vec<Listed>, Error> {
        // The semaphore is never closed.
        let _permit = self.listing.acquire().await.ok();
        let response = self.cri().list_pod_sandbox(ListPodSandboxRequest {}).await.map_err(call("list sandboxes"))?;
        let items = response.into_inner().items.into_iter().filter(|item| item.runtime_handler == handler);
        let listed = items.map(|item| {
            let is_ready = item.state() == PodSandboxState::SandboxReady;
            let pod = item.metadata.unwrap_or_default();
            Listed { id: item.id, namespace: pod.namespace, name: pod.name, uid: pod.uid, is_ready }
        });
        Ok(listed.collect())
    }

    /// Returns true if a sandbox has the node's network, for which no plugin is called, or is gone.
    pub async fn has_network_of_node(&self, sandbox: &str) -> Result<bool, Error> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned() };
        let status = match self.cri().pod_sandbox_status(request).await.map_err(call("read a sandbox' network")) {
            Err(error) if error.is_not_found() => return Ok(true),
            status => status?.into_inner().status,
        };
        let options = status.and_then(|status| status.linux?.namespaces?.options);
        Ok(options.is_some_and(|options| options.network() == NamespaceMode::Node))
    }

    /// Returns the configuration of the runtime's handlers, as JSON.
    pub async fn configuration(&self) -> Result<Value, Error> {
        let response =
            self.cri().status(StatusRequest { verbose: true }).await.map_err(call("read its configuration"))?;
        let text = response.into_inner().info.remove("config").unwrap_or_default();
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    fn cri(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT)
    }

    fn containers(&self) -> ContainersClient<Namespaced> {
        let client = ContainersClient::with_interceptor(self.channel.clone(), InNamespace);
        client.max_decoding_message_size(MESSAGE_LIMIT)
    }

    fn tasks(&self) -> TasksClient<Namespaced> {
        TasksClient::with_interceptor(self.channel.clone(), InNamespace)
    }
}

/// Returns the PID of a process in this state; `None` where it does not run.
fn pid_of(status: TaskStatus, pid: u32) -> Result<Option<u32>, Error> {
    match status {
        TaskStatus::Running | TaskStatus::Paused | TaskStatus::Pausing => Ok(Some(pid)),
        TaskStatus::Created | TaskStatus::Stopped => Ok(None),
        // containerd has waited 2 s for the shim in vain: it may run.
        TaskStatus::Unknown => Err(call("read a task's state")(Status::unavailable("its shim has not answered"))),
    }
}

/// Returns the address of a process of `logger` that writes to `log`.
fn output(logger: &Path, log: &Path) -> String {
    format!("binary://{}?{LOG_COMMAND}={}", logger.display(), log.display())
}

fn json_of(kind: &str, value: &Value) -> Any {
    Any { type_url: kind.to_owned(), value: value.to_string().into_bytes() }
}

fn call(what: &'static str) -> impl Fn(Status) -> Error {
    move |cause| Error::Call { what, cause }
}

/// Returns `None` for "not found", which `kill` also returns for a process that has ended.
fn found<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(None),
        result => result.map(Some),
    }
}

/// Names the namespace in each request.
#[derive(Debug, Clone, Copy)]
struct InNamespace;

impl Interceptor for InNamespace {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::future::join_all;
    use tokio::io::AsyncReadExt;
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn process_whose_state_is_unknown_has_not_ended() {
        for running in [TaskStatus::Running, TaskStatus::Paused, TaskStatus::Pausing] {
            assert_eq!(pid_of(running, 7).unwrap(), Some(7));
        }
        for ended in [TaskStatus::Created, TaskStatus::Stopped] {
            assert_eq!(pid_of(ended, 7).unwrap(), None);
        }
        assert!(!pid_of(TaskStatus::Unknown, 7).unwrap_err().is_not_found());
    }

    /// Reads a connection of HTTP/2, which is not answered, and counts the frames that begin a request.
    async fn requests_of(mut connection: UnixStream, count: &AtomicUsize) -> std::io::Result<()> {
        connection.read_exact(&mut [0; "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()]).await?;
        loop {
            let mut head = [0; 9];
            connection.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            connection.read_exact(&mut vec![0; length as usize]).await?;
            if head[3] == 1 {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    #[tokio::test]
    async fn sandboxes_are_listed_one_list_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("containerd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let containerd = Containerd::at(&socket).unwrap();
        let count = AtomicUsize::new(0);
        let lists = join_all((0..3).map(|_| containerd.sandboxes("istio-aux")));
        let server = async { requests_of(listener.accept().await.unwrap().0, &count).await };
        let first = async {
            while count.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // A second one would be there by then.
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        tokio::select! {
            biased;
            _ = lists => panic!("none is answered"),
            _ = server => panic!("none is answered"),
            () = first => {}
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
