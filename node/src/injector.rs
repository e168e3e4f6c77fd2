//! Asks istiod's injector for what a sidecar of the pod would get, so that the proxy on the node is configured as that would be.
//! Environment and arguments are taken. Image, mounts, user and confinement are the agent's own (`proxy/spec.rs`).

mod annotations;
mod program;
mod rendered;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use cni::protocol::Sandbox;
use contract::names::{INJECTED_CONTAINERS, ISTIO_INJECT};
use hyper::{Request, header};
use json_patch::Patch;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Config;
use serde_json::{Value, json};
use x509_parser::pem::Pem;

use self::annotations::wrong_traffic_annotation;
pub(crate) use self::annotations::{annotations, is_of_proxy};
pub use self::program::Program;
pub use self::rendered::Rendered;
use self::rendered::rendered;
pub(crate) use self::rendered::value_after;
use crate::error::{Context, Error, Result};
use crate::pod::client;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const TRUST_DOMAIN: &str = "TRUST_DOMAIN";
/// A namespace that istiod's injector does not leave out. It need not exist.
const ISTIOS_NAMESPACE: &str = "istio-system";

/// Holds how the agent reaches istiod's injector, whose certificate istiod's CA has signed.
#[derive(Debug, Args)]
pub struct Injector {
    /// istiod's injector
    #[arg(long = "injector", default_value = "https://istiod.istio-system.svc/inject")]
    pub endpoint: String,
    /// The node's address, which is `status.hostIP` of its pods: the API server learns it later
    #[arg(long, env = "HOST_IP")]
    pub host_ip: Option<IpAddr>,
}

impl Injector {
    /// Asks for a pod's proxy. `root` is the CA of istiod's certificate.
    pub async fn render(&self, pod: &Pod, sandbox: &Sandbox, root: &Path) -> Result<Rendered> {
        // Built twice rather than kept: the object takes much more memory than its text.
        let text = review(self.object(pod)?).to_string();
        let answer = self.ask(text.into_bytes(), root).await.context("istiod's injector")?;
        let injected = injected(self.object(pod)?, &answer).context("istiod's injector")?;
        rendered(&injected, sandbox).context("istiod's template")
    }

    /// Asks for the mesh's trust domain, by a pod that the agent makes up. For real pods, istiod's answer may contain values of a
    /// `ProxyConfig` in their namespace, which istiod does not validate.
    pub async fn trust_domain(&self, root: &Path) -> Result<String> {
        let metadata = ObjectMeta {
            name: Some("trust-domain".to_owned()),
            namespace: Some(ISTIOS_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        };
        let containers = vec![Container { name: "main".to_owned(), ..Container::default() }];
        let spec = Some(PodSpec { containers, ..PodSpec::default() });
        let pod = Pod { metadata, spec, ..Pod::default() };
        Ok(self.render(&pod, &Sandbox::default(), root).await?.trust_domain().to_owned())
    }

    async fn ask(&self, review: Vec<u8>, root: &Path) -> Result<Value> {
        let root = tokio::fs::read(root).await.context(root.display())?;
        let root = Pem::iter_from_buffer(&root).map(|pem| pem.map(|pem| pem.contents));
        let mut config = Config::new(self.endpoint.parse()?);
        config.root_cert = Some(root.collect::<Result<_, _>>()?);
        let request = Request::post("/").header(header::CONTENT_TYPE, "application/json");
        Ok(client(config, REQUEST_TIMEOUT)?.request(request.body(review)?).await?)
    }

    /// Returns the pod as it was created, with only the annotations that may configure its proxy.
    fn object(&self, pod: &Pod) -> Result<Value> {
        let spec = pod.spec.as_ref().context("it has no spec")?;
        let mut own =
            spec.init_containers.iter().flatten().chain(&spec.containers).map(|container| container.name.as_str());
        // Istio would merge it into its own container, whose arguments run as root in the pod's network.
        if let Some(name) = own.find(|name| INJECTED_CONTAINERS.contains(name)) {
            return Err(Error::new(format_args!(
                "the pod has a container {name} of its own, which no proxy on the node gets"
            )));
        }
        let none = BTreeMap::new();
        let given = pod.metadata.annotations.as_ref().unwrap_or(&none);
        if let Some(name) = wrong_traffic_annotation(given) {
            return Err(Error::new(format_args!("the annotation {name} is not a list of ports or address ranges")));
        }
        let mut object = serde_json::to_value(pod)?;
        object["metadata"]["annotations"] = json!(annotations(given));
        // Go writes this field also where it is empty, and the injector's patch adds to it.
        for list in ["initContainers", "containers"] {
            for container in object["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                if container["resources"].is_null() {
                    container["resources"] = json!({});
                }
            }
        }
        // The webhook has opted the pod out of an ordinary sidecar.
        object["metadata"]["labels"][ISTIO_INJECT] = "true".into();
        if let Some(address) = self.host_ip {
            object["status"]["hostIP"] = address.to_string().into();
        }
        Ok(object)
    }
}

/// Returns the review of an object.
fn review(object: Value) -> Value {
    let metadata = &object["metadata"];
    let mut review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": metadata["uid"],
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "operation": "CREATE",
            "userInfo": {},
        },
    });
    review["request"]["object"] = object;
    review
}

/// Applies the injector's patch to the pod.
fn injected(mut pod: Value, answer: &Value) -> Result<Pod> {
    let response = &answer["response"];
    if response["allowed"] != true {
        let reason = response["status"]["message"].as_str().unwrap_or("no reason");
        return Err(Error::new(format_args!("it rejects the pod: {reason}")));
    }
    let patch = response.get("patch").context("it does not change the pod")?;
    let patch: ByteString = serde_json::from_value(patch.clone())?;
    let patch: Patch = serde_json::from_slice(&patch.0)?;
    json_patch::patch(&mut pod, &patch)?;
    Ok(serde_json::from_value(pod)?)
}

#[cfg(test)]
mod tests {
    use super::program::VALUE_LIMIT;
    use super::*;
    use contract::names::PROXY_CONFIG_ANNOTATION;

    fn pod(annotations: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "train-0", "namespace": "team", "uid": "1", "annotations": annotations,
                "labels": {"app": "train", "sidecar.istio.io/inject": "false"},
            },
            "spec": {"nodeName": "node1", "serviceAccountName": "trainer", "containers": [{"name": "main"}]},
        }))
        .unwrap()
    }

    fn sandbox() -> Sandbox {
        Sandbox { addresses: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()], ..Sandbox::default() }
    }

    /// Returns what the injector adds in these cases, as its answer.
    fn answer(init: &Value, proxy: &Value) -> Value {
        let patch = json!([
            {"op": "add", "path": "/spec/initContainers", "value": [init]},
            {"op": "add", "path": "/spec/containers/1", "value": proxy},
        ]);
        json!({"response": {"allowed": true, "patch": ByteString(patch.to_string().into_bytes())}})
    }

    fn init(name: &str, args: &[&str]) -> Value {
        let env = json!([{"name": "ISTIO_META_DNS_CAPTURE", "value": "true"}, {"name": "LD_PRELOAD", "value": "/x"}]);
        let args = [&["istio-iptables", "-u", "1337"], args].concat();
        json!({"name": name, "args": args, "env": env})
    }

    fn field(name: &str, path: &str) -> Value {
        json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    }

    fn proxy() -> Value {
        let limit = |name: &str, resource: &str| json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": "1"}}});
        json!({
            "name": "istio-proxy", "image": "elsewhere/proxy", "securityContext": {"privileged": true},
            "args": ["proxy", "sidecar", "--domain", "$(POD_NAMESPACE).svc.cluster.local", "--price=$$5$(UNKNOWN)"],
            "resources": {"limits": {"cpu": "1500m"}},
            "env": [
                field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"),
                field("INSTANCE_IP", "status.podIP"), field("INSTANCE_IPS", "status.podIPs"),
                field("SERVICE_ACCOUNT", "spec.serviceAccountName"), field("NODE", "spec.nodeName"),
                field("APP", "metadata.labels['app']"), field("HOST_IP", "status.hostIP"),
                limit("ISTIO_CPU_LIMIT", "limits.cpu"), limit("GOMEMLIMIT", "limits.memory"),
                {"name": "OWN", "value": "$(POD_NAME)!"}, {"name": "TRUST_DOMAIN", "value": "td"},
                {"name": "ISTIO_META_POD_PORTS", "value": "9".repeat(VALUE_LIMIT + 1)},
            ],
        })
    }

    fn object(pod: &Pod) -> Result<Value> {
        Injector { endpoint: String::new(), host_ip: "192.0.2.1".parse().ok() }.object(pod)
    }

    fn render(answer: &Value) -> Result<Rendered> {
        rendered(&injected(object(&pod(&json!({})))?, answer)?, &sandbox())
    }

    #[test]
    fn only_arguments_and_environment_are_taken() {
        let rendered = render(&answer(&init("istio-init", &["-m", "REDIRECT"]), &proxy())).unwrap();
        assert_eq!(rendered.trust_domain(), "td");
        insta::assert_json_snapshot!(rendered);
    }

    /// Istio puts its validation, or its native sidecar, before the pod's own init containers, and its patch changes the first one.
    #[test]
    fn patch_adds_to_the_resources_of_each_container() {
        let mut pod = pod(&json!({}));
        let spec = pod.spec.as_mut().unwrap();
        spec.init_containers = Some(vec![Container { name: "init".to_owned(), ..Container::default() }]);
        let mut object = object(&pod).unwrap();
        let limits = |list: &str| json!({"op": "add", "path": format!("/spec/{list}/0/resources/limits"), "value": {"cpu": "2"}});
        let patch: Patch = serde_json::from_value(json!([limits("initContainers"), limits("containers")])).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        assert_eq!(object["spec"]["initContainers"][0]["resources"]["limits"]["cpu"], "2");
    }

    #[test]
    fn rules_are_applied_where_istio_cni_would_apply_them() {
        let checks = ["-m", "REDIRECT", "--run-validation", "--skip-rule-apply"];
        let rendered = render(&answer(&init("istio-validation", &checks), &proxy())).unwrap();
        assert_eq!(rendered.redirection.args, ["istio-iptables", "-u", "1337", "-m", "REDIRECT"]);
    }

    #[test]
    fn pod_without_a_usable_proxy_is_an_error() {
        let secret = json!({"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}});
        let secret = json!({"name": "istio-proxy", "env": [secret]});
        let redirect = init("istio-init", &["-m", "REDIRECT"]);
        let refused = json!({"response": {"status": {"message": "excludeInboundPorts invalid: a"}}});
        for (answer, text) in [
            (refused, "it rejects the pod: excludeInboundPorts invalid: a"),
            (json!({}), "it rejects the pod: no reason"),
            (json!({"response": {"allowed": true}}), "it does not change the pod"),
            (answer(&init("other", &[]), &proxy()), "it redirects no traffic"),
            (answer(&init("istio-init", &["-m", "TPROXY"]), &proxy()), "interceptionMode TPROXY is not supported"),
            (answer(&redirect, &json!({"name": "other"})), "it has no container istio-proxy"),
            (answer(&redirect, &secret), "variable T is from neither a field nor a limit"),
        ] {
            let error = render(&answer).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn container_or_rule_that_a_line_of_a_tenant_adds_is_an_error() {
        let redirect = init("istio-init", &["-m", "REDIRECT"]);
        let two = |more: &Value| {
            let patch = json!([
                {"op": "add", "path": "/spec/initContainers", "value": [redirect, more]},
                {"op": "add", "path": "/spec/containers/1", "value": proxy()},
            ]);
            json!({"response": {"allowed": true, "patch": ByteString(patch.to_string().into_bytes())}})
        };
        let rule = |argument: &str| answer(&init("istio-init", &["-m", "REDIRECT", "-q", argument]), &proxy());
        let mut groups = redirect.clone();
        groups["env"] = json!([{"name": "ISTIO_OUTBOUND_OWNER_GROUPS", "value": "1\nCOMMIT"}]);
        for (answer, text) in [
            (two(&json!({"name": "istio-proxy"})), "more than one container istio-proxy"),
            (two(&init("istio-validation", &[])), "more than one container istio-init"),
            (rule("80\nCOMMIT"), r#"its value "80\nCOMMIT" for istio-iptables may be a rule"#),
            (rule("80 -j RETURN"), r#"its value "80 -j RETURN" for istio-iptables may be a rule"#),
            (answer(&groups, &proxy()), r#"its value "1\nCOMMIT" for istio-iptables may be a rule"#),
        ] {
            let error = render(&answer).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn values_that_refer_to_others_are_bounded() {
        let long = "x".repeat(VALUE_LIMIT);
        let variables = |count: usize| -> Vec<Value> {
            let repeated = (0..count).map(|number| json!({"name": format!("R{number}"), "value": "$(LONG)"}));
            [json!({"name": "LONG", "value": long})].into_iter().chain(repeated).collect()
        };
        let redirect = init("istio-init", &["-m", "REDIRECT"]);
        let rendered = |proxy: Value| render(&answer(&redirect, &proxy)).map_err(|error| error.to_string());
        let twice = json!({"name": "istio-proxy", "env": [{"name": "T", "value": "$(LONG)$(LONG)"}]});
        assert!(rendered(twice).unwrap().proxy.environment["T"].len() < VALUE_LIMIT, "LONG is not known");
        for (proxy, expected) in [
            (json!({"name": "istio-proxy", "env": variables(8)}), "larger than 512 KiB"),
            (json!({"name": "istio-proxy", "env": variables(0), "args": ["$(LONG)$(LONG)"]}), "longer than 64 KiB"),
            (json!({"name": "istio-proxy", "env": variables(0), "args": vec!["$(LONG)"; 8]}), "larger than 512 KiB"),
        ] {
            let error = rendered(proxy).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let mut many = variables(0);
        many.push(json!({"name": "MANY", "value": "$(LONG)".repeat(1_000)}));
        let proxy = rendered(json!({"name": "istio-proxy", "env": many})).unwrap().proxy;
        assert_eq!(proxy.environment.keys().collect::<Vec<_>>(), ["LONG"], "longer than a variable may be");
    }

    #[test]
    fn proxy_config_changes_no_trust_domain() {
        let mut proxy = proxy();
        let variables = proxy["env"].as_array_mut().unwrap();
        variables.push(json!({"name": TRUST_DOMAIN, "value": "other"}));
        let rendered = render(&answer(&init("istio-init", &["-m", "REDIRECT"]), &proxy)).unwrap();
        assert_eq!(rendered.trust_domain(), "td");
    }

    #[test]
    fn annotation_that_is_no_list_of_ports_is_refused() {
        let error = object(&pod(&json!({"traffic.sidecar.istio.io/includeOutboundPorts": r"80\n"}))).unwrap_err();
        let expected =
            "the annotation traffic.sidecar.istio.io/includeOutboundPorts is not a list of ports or address ranges";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn container_of_istios_name_is_refused() {
        for (field, name) in
            [("containers", "istio-proxy"), ("initContainers", "istio-init"), ("initContainers", "istio-validation")]
        {
            let mut pod = json!(pod(&json!({})));
            pod["spec"][field] = json!([{"name": name}]);
            let error = object(&serde_json::from_value(pod).unwrap()).unwrap_err().to_string();
            assert!(error.contains(&format!("the pod has a container {name} of its own")), "{error}");
        }
    }

    #[test]
    fn review_has_only_allowed_annotations_and_asks_for_a_sidecar() {
        let config = "concurrency: 1\nbinaryPath: /bin/sh\ndiscoveryAddress: mine:15012\nstatusPort: 15025\n\
                      proxyMetadata: {PROV_CERT: x}\nproxyAdminPort: 1\ncaCertificatesPem: [x]\ncustomConfigFile: /x";
        let object = object(&pod(&json!({
            PROXY_CONFIG_ANNOTATION: config,
            "traffic.sidecar.istio.io/excludeInboundPorts": "9000",
            "sidecar.istio.io/logLevel": "info\n    - --templateFile=/etc/istio/pod/annotations",
            "sidecar.istio.io/proxyImage": "mine", "sidecar.istio.io/bootstrapOverride": "mine",
            "sidecar.istio.io/userVolume": "[]", "inject.istio.io/templates": "mine",
            "sidecar.istio.io/interceptionMode": "NONE", "status.sidecar.istio.io/port": "15025",
            "sidecar.istio.io/discoveryAddress": "mine:15012",
        })))
        .unwrap();
        let expected = json!({
            PROXY_CONFIG_ANNOTATION: r#"{"concurrency":1}"#, "traffic.sidecar.istio.io/excludeInboundPorts": "9000",
        });
        assert_eq!(object["metadata"]["annotations"], expected);
        assert_eq!(object["metadata"]["labels"], json!({"app": "train", "sidecar.istio.io/inject": "true"}));
    }
}
