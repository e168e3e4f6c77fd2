//! Labels, annotations, container names and ports, as users and clusters see them.

/// Namespace label, and pod label, that opts in; the value is [`ENABLED`].
pub const INJECTION_LABEL: &str = "istio-aux.io/injection";
/// Namespace label of earlier installations, honoured as [`INJECTION_LABEL`] is on namespaces.
pub const LEGACY_INJECTION_LABEL: &str = "io.datastrophic/istio-aux";
/// Value of [`INJECTION_LABEL`] that opts in.
pub const ENABLED: &str = "enabled";
/// Value of [`INJECTION_LABEL`] on a pod that opts it out.
pub const DISABLED: &str = "disabled";

/// Namespace label: pods that run to completion, and notebooks, get a token for Kubeflow Pipelines; the value is [`ENABLED`].
pub const PIPELINES_TOKEN_LABEL: &str = "istio-aux.io/pipelines-token";
/// Namespace label: pods that run to completion get Istio's sidecar, too; the value is [`RUN_TO_COMPLETION`].
pub const MESH_LABEL: &str = "istio-aux.io/mesh";
/// Value of [`MESH_LABEL`].
pub const RUN_TO_COMPLETION: &str = "run-to-completion";
/// Namespace label: the controller keeps the objects that a tenant of Kubeflow needs; the value is [`ENABLED`].
pub const TENANCY_LABEL: &str = "istio-aux.io/tenancy";
/// Namespace annotation: the service accounts that may use Kubeflow Pipelines, separated by commas. Without it: none.
pub const PIPELINES_ACCOUNTS_ANNOTATION: &str = "istio-aux.io/pipelines-accounts";
/// Namespace annotation: the `ClusterRole` to which they are bound. Without it: [`PIPELINES_ROLE`].
pub const PIPELINES_ROLE_ANNOTATION: &str = "istio-aux.io/pipelines-role";
/// Kubernetes' label for the manager of an object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Label of a tenant's objects: the namespace of their controller. By `app.kubernetes.io/instance` Argo CD takes objects for its own.
pub const INSTALLATION_LABEL: &str = "istio-aux.io/installation";
/// Manager of a tenant's objects: the value of [`MANAGED_BY_LABEL`], and the field manager.
pub const TENANCY_MANAGER: &str = "istio-aux-tenancy";

/// Pod annotation: the containers to wait for, separated by commas. Without it: all but the proxy and the shim.
pub const WAIT_FOR_ANNOTATION: &str = "istio-aux.io/wait-for";
/// Pod annotation: other endpoints to `POST` to before the proxy's, separated by commas.
pub const QUIT_ANNOTATION: &str = "istio-aux.io/quit";
/// Pod annotation: how the pod is to be ended. `auto`, `native`, `proxy`, `status`, `istio`, `hold` or `off`.
pub const MODE_ANNOTATION: &str = "istio-aux.io/mode";
/// Pod annotation: requests of the shim's containers, such as `cpu=10m,memory=8Mi`, over the installation's.
pub const SHIM_REQUESTS_ANNOTATION: &str = "istio-aux.io/shim-requests";
/// Pod annotation: limits of the shim's containers, such as `memory=32Mi`, over the installation's.
pub const SHIM_LIMITS_ANNOTATION: &str = "istio-aux.io/shim-limits";
/// Pod annotation, written by the webhook: the decision and its reason in one line of JSON.
pub const STATUS_ANNOTATION: &str = "istio-aux.io/status";
/// Pod annotation, written by the webhook when the kubelet reports that the awaited containers have ended for good: their exit
/// codes, such as `main=0,metrics=137`. Nobody else may write it.
pub const ENDED_ANNOTATION: &str = "istio-aux.io/ended";
/// Pod label, written by the webhook: the mode in which the shim was added.
pub const SHIM_LABEL: &str = "istio-aux.io/shim";

/// Name of the native sidecar that runs the shim.
pub const SHIM_CONTAINER: &str = "aux-shim";
/// User and group ID of the shim: its own, so that no payload of the same ID may signal it. Many payloads run as 65532, the
/// `nonroot` of distroless images.
pub const SHIM_UID: u32 = 65_019;
/// Name of the init container that copies the shim's binary into [`SHIM_VOLUME`].
pub const INSTALL_CONTAINER: &str = "aux-shim-install";
/// The volume of the shim's binary in other containers.
pub const SHIM_VOLUME: &str = "istio-aux";
/// The volume of the downward API with the pod's annotations.
pub const ANNOTATIONS_VOLUME: &str = "istio-aux-annotations";
/// Mount path of [`ANNOTATIONS_VOLUME`].
pub const ANNOTATIONS_DIR: &str = "/istio-aux-annotations";
/// The file in [`ANNOTATIONS_VOLUME`] and in Istio's own volume.
pub const ANNOTATIONS_FILE: &str = "annotations";
/// Mount path of Istio's own volume of the downward API, in istio-proxy.
pub const ISTIO_POD_DIR: &str = "/etc/istio/pod";
/// Where the API server mounts the token of the service account, unless pod or account say `automountServiceAccountToken: false`.
pub const ACCOUNT_TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Mount path of the shim's binary in other containers.
pub const BINARY_DIR: &str = "/istio-aux";
/// The shim's binary in other containers.
pub const SHIM_BINARY: &str = "/istio-aux/aux-shim";
/// Repository of the shim's image; its tag is the version. No registry has that name: each installation sets its own.
pub const SHIM_IMAGE: &str = "registry.invalid/istio-aux/shim";

/// Name of Istio's proxy container.
pub const PROXY_CONTAINER: &str = "istio-proxy";
/// Names of the containers that Istio's injector adds. It merges a pod's own ones into them.
pub const INJECTED_CONTAINERS: [&str; 3] = [PROXY_CONTAINER, "istio-init", "istio-validation"];
/// Pod label, or annotation, that enables or disables Istio's injection.
pub const ISTIO_INJECT: &str = "sidecar.istio.io/inject";
/// Pod annotation, written by Istio's injector: the names that it has rendered, in JSON.
pub const ISTIO_STATUS_ANNOTATION: &str = "sidecar.istio.io/status";
/// Pod annotation: the templates that Istio's injector renders, separated by commas.
pub const TEMPLATES_ANNOTATION: &str = "inject.istio.io/templates";
/// Pod label of gateways and waypoints of the Kubernetes Gateway API: the Gateway's name.
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// Pod label of gateways and waypoints that istiod deploys.
pub const MANAGED_GATEWAY_LABEL: &str = "gateway.istio.io/managed";
/// Pod annotation by which Istio's injector makes its proxy a native sidecar, or an ordinary container.
pub const NATIVE_SIDECAR_ANNOTATION: &str = "sidecar.istio.io/nativeSidecar";
/// Entrypoint of Istio's proxy image.
pub const PILOT_AGENT: &str = "/usr/local/bin/pilot-agent";
/// Pod annotation that Istio merges into the proxy's configuration (a `ProxyConfig` in YAML).
pub const PROXY_CONFIG_ANNOTATION: &str = "proxy.istio.io/config";
/// Field of `ProxyConfig`: the payload starts when the proxy is ready.
pub const HOLD_FIELD: &str = "holdApplicationUntilProxyStarts";
/// Pod annotation that changes the port on which pilot-agent answers.
pub const STATUS_PORT_ANNOTATION: &str = "status.sidecar.istio.io/port";
/// The port on which pilot-agent answers by default.
pub const DEFAULT_STATUS_PORT: u16 = 15_020;
/// Envoy's admin port, on localhost; the same path there ends Envoy, and pilot-agent with it.
pub const ENVOY_ADMIN_PORT: u16 = 15_000;
/// Path that ends the proxy, for a POST to pilot-agent's status port from inside the pod.
pub const QUIT_PATH: &str = "/quitquitquit";

/// Parts of the names of runtime classes for gVisor and Kata Containers.
pub const SANDBOXED_RUNTIMES: [&str; 3] = ["gvisor", "runsc", "kata"];

/// Pod label of Kubeflow's notebooks: the Notebook's name.
pub const NOTEBOOK_LABEL: &str = "notebook-name";
/// Pod label that has the `PodDefault` of the same name applied. A pod with that label, of any value, gets no token.
pub const ACCESS_PIPELINES_LABEL: &str = "access-ml-pipeline";
/// The volume of the token for Kubeflow Pipelines.
pub const PIPELINES_TOKEN_VOLUME: &str = "istio-aux-pipelines-token";
/// Mount path of that token, as in Kubeflow's own `PodDefault`.
pub const PIPELINES_TOKEN_DIR: &str = "/var/run/secrets/kubeflow/pipelines";
/// The file of the token in that directory.
pub const PIPELINES_TOKEN_FILE: &str = "token";
/// The environment variable by which the SDK of Kubeflow Pipelines finds the token.
pub const PIPELINES_TOKEN_ENV: &str = "KF_PIPELINES_SA_TOKEN_PATH";
/// The audience of the token, which the API server of Kubeflow Pipelines asks for when it reviews one.
pub const PIPELINES_AUDIENCE: &str = "pipelines.kubeflow.org";
/// Lifetime of the token, in seconds. The kubelet renews it before that.
pub const PIPELINES_TOKEN_SECONDS: i64 = 7200;
/// The `ClusterRole` of istio-aux that lets an account submit and read runs of Kubeflow Pipelines in its namespace.
pub const PIPELINES_ROLE: &str = "istio-aux-pipelines";

/// Pod label of Katib's trials.
pub const KATIB_TRIAL_LABEL: &str = "katib.kubeflow.org/trial";
/// Option that only Katib's own collectors have: the service to report to.
pub const KATIB_COLLECTOR_OPTION: &str = "-s-db";
/// Part of the command of the container whose metrics Katib collects.
pub const KATIB_COMPLETED_MARKER: &str = "echo completed > ";
/// Pod label of Argo's workflows.
pub const ARGO_WORKFLOW_LABEL: &str = "workflows.argoproj.io/workflow";
/// The container from which Airflow's `KubernetesPodOperator` reads a value.
pub const AIRFLOW_XCOM_CONTAINER: &str = "airflow-xcom-sidecar";
/// Pod annotation: the command that Argo's controller runs in istio-proxy, in place of `kill -15 1`, when the main containers
/// end.
pub const ARGO_KILL_PROXY_ANNOTATION: &str = "workflows.argoproj.io/kill-cmd-istio-proxy";
/// A command that ends nothing: the proxy is still needed for a step's upload (argo-workflows#12919).
pub const ARGO_NOOP_COMMAND: &str = r#"["pilot-agent","version"]"#;

/// Namespace label: the proxies of its pods run on the node; the value is [`NODE`].
pub const PROXY_LABEL: &str = "istio-aux.io/proxy";
/// Value of [`PROXY_LABEL`].
pub const NODE: &str = "node";
/// The runtime class of pods whose proxy runs on the node.
pub const NODE_RUNTIME_CLASS: &str = "istio-aux";
/// Pod annotation: the original probes, which pilot-agent makes in the kubelet's place, in the JSON that it reads.
pub const PROBES_ANNOTATION: &str = "istio-aux.io/probes";
/// Pod annotation: what `prometheus.io/` had for the application, which pilot-agent scrapes in Prometheus' place, in the JSON
/// that it reads.
pub const SCRAPES_ANNOTATION: &str = "istio-aux.io/prometheus";
/// The largest length of these two: they become environment variables, which Linux limits to 128 KiB.
pub const PASSED_ANNOTATION_LIMIT: usize = 64 * 1024;
/// Pod annotation: `false` keeps Prometheus from scraping the pod.
pub const SCRAPE_ANNOTATION: &str = "prometheus.io/scrape";
/// Pod annotation: the port that Prometheus scrapes.
pub const SCRAPE_PORT_ANNOTATION: &str = "prometheus.io/port";
/// Pod annotation: the path that Prometheus scrapes.
pub const SCRAPE_PATH_ANNOTATION: &str = "prometheus.io/path";
/// Pod annotation of Istio's: several ports and paths of the application, in place of one of `prometheus.io/` each.
pub const SCRAPE_TARGETS_ANNOTATION: &str = "prometheus.istio.io/scrape-targets";
/// Pod annotation of Istio's: `false` leaves Prometheus' scrapes as they are.
pub const MERGE_METRICS_ANNOTATION: &str = "prometheus.istio.io/merge-metrics";
/// Pod annotation of Istio's: `false` leaves the probes as they are.
pub const REWRITE_PROBES_ANNOTATION: &str = "sidecar.istio.io/rewriteAppHTTPProbers";
/// Pod label of Istio's: peers use mutual TLS.
pub const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";
/// Pod label of Istio's: the service that telemetry names.
pub const CANONICAL_NAME_LABEL: &str = "service.istio.io/canonical-name";
/// Pod label of Istio's: the service's revision.
pub const CANONICAL_REVISION_LABEL: &str = "service.istio.io/canonical-revision";

/// Pod label of Istio's ambient mesh.
pub const AMBIENT_LABEL: &str = "istio.io/dataplane-mode";
/// Value of [`AMBIENT_LABEL`] that keeps a pod out of it.
pub const NOT_AMBIENT: &str = "none";
/// Annotation of Istio's: connections to these ports, separated by commas, bypass the proxy.
pub const EXCLUDED_PORTS_ANNOTATION: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
/// Init container of a charm's pod, which calls the Juju controller.
pub const CHARM_INIT_CONTAINER: &str = "charm-init";
/// Default port of a Juju controller's API.
pub const CONTROLLER_PORT: &str = "17070";
