//! Delivers to one namespace at a time: reads what a plan needs, and carries it out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::names::SHIM_DELIVERY_LABEL;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::{PartialObjectMeta, Request};
use serde_json::{Value, json};

use super::binary::{CONFIG_MAPS, ShimBinary};
use super::plan::{Observed, Step, judge, plan, wants_config_map};
use super::policies::{BINDINGS, NAMES, POLICIES, reason_not_in_force};
use crate::api;
use crate::tenancy::{Map, Notice, is_gone};

/// How long the policies are taken for being as they were.
const POLICIES_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// What was done in a namespace, and what could not be.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    /// Each change, in words.
    pub(crate) changed: Vec<String>,
    pub(crate) notices: Vec<Notice>,
    /// Whether the namespace wants the `ConfigMap`.
    pub(crate) is_wanted: bool,
    /// Whether pods of the namespace are told of it.
    pub(crate) is_labelled: bool,
}

/// Keeps the shim's `ConfigMap` in namespaces.
#[derive(Debug)]
pub(crate) struct Deliverer {
    binary: ShimBinary,
    /// The `ConfigMap` as the API server takes it.
    body: Vec<u8>,
    /// When the policies were read, and why they are not in force.
    policies: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
    /// The UIDs of `ConfigMaps` that were read as a whole, by namespace. What is immutable is not read again.
    verified: Mutex<HashMap<String, String>>,
}

impl Deliverer {
    pub(crate) fn new(binary: ShimBinary) -> Self {
        let body = binary.config_map().to_string().into_bytes();
        Self { binary, body, policies: tokio::sync::Mutex::default(), verified: Mutex::default() }
    }

    /// Brings one namespace to what its labels ask for.
    pub(crate) async fn deliver(&self, client: &Client, namespace: &str, labels: &Map) -> kube::Result<Delivered> {
        let is_wanted = wants_config_map(labels);
        let observed = if is_wanted { Some(self.observe(client, namespace).await?) } else { None };
        let plan = plan(labels, &self.binary.config_map_name(), observed.as_ref());
        let is_labelled =
            observed.as_ref().is_some_and(|observed| matches!(observed, Observed::Missing | Observed::Delivered));
        let mut delivered = Delivered { changed: Vec::new(), notices: plan.notices, is_wanted, is_labelled };
        for step in plan.steps {
            let result = match &step {
                Step::Create => self.create(client, namespace).await,
                Step::Label(value) => label(client, namespace, json!(value)).await,
                Step::Unlabel => label(client, namespace, Value::Null).await,
            };
            match result {
                Ok(()) => delivered.changed.push(self.describe(&step)),
                Err(error) if is_gone(&error) => break,
                // A quota, or another policy. While there is no ConfigMap, no pod is to be told of one.
                Err(kube::Error::Api(status)) if step == Step::Create && matches!(status.code, 403 | 422) => {
                    if labels.contains_key(SHIM_DELIVERY_LABEL) {
                        label(client, namespace, Value::Null).await?;
                        delivered.changed.push(self.describe(&Step::Unlabel));
                    }
                    delivered.is_labelled = false;
                    let text = format!("the API server takes no ConfigMap of the shim: {}", status.message);
                    delivered.notices.push(Notice::warning("ConfigMapRefused", text));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(delivered)
    }

    /// Forgets a namespace that is gone.
    pub(crate) fn forget(&self, namespace: &str) {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }

    fn describe(&self, step: &Step) -> String {
        match step {
            Step::Create => format!("created ConfigMap {}", self.binary.config_map_name()),
            Step::Label(value) => format!("set label {SHIM_DELIVERY_LABEL}={value}"),
            Step::Unlabel => format!("removed label {SHIM_DELIVERY_LABEL}"),
        }
    }

    async fn observe(&self, client: &Client, namespace: &str) -> kube::Result<Observed> {
        if let Some(reason) = self.reason_unguarded(client).await? {
            return Ok(Observed::Unguarded(reason));
        }
        let name = self.binary.config_map_name();
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned();
        if let Some(verified) = verified {
            let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let found = config_maps.get_metadata_opt(&name).await?;
            match found {
                None => return Ok(Observed::Missing),
                Some(found) if found.metadata.uid.as_ref() == Some(&verified) => return Ok(Observed::Delivered),
                Some(_) => {}
            }
        }
        let Some(found) = api::try_get(client, CONFIG_MAPS, Some(namespace), &name).await? else {
            return Ok(Observed::Missing);
        };
        let observed = judge(&self.binary, &found);
        if observed == Observed::Delivered {
            self.remember(namespace, found["metadata"]["uid"].as_str().unwrap_or_default());
        }
        Ok(observed)
    }

    /// Why anybody could write the `ConfigMap`; `None` where the policies are in force.
    async fn reason_unguarded(&self, client: &Client) -> kube::Result<Option<String>> {
        let mut policies = self.policies.lock().await;
        if let Some((read, reason)) = &*policies
            && read.elapsed() < POLICIES_CHECK_INTERVAL
        {
            return Ok(reason.clone());
        }
        let mut reason = None;
        for name in NAMES {
            let policy = api::try_get(client, POLICIES, None, name).await?;
            let binding = api::try_get(client, BINDINGS, None, name).await?;
            reason = reason.or_else(|| reason_not_in_force(name, policy.as_ref(), binding.as_ref()));
        }
        *policies = Some((Instant::now(), reason.clone()));
        Ok(reason)
    }

    async fn create(&self, client: &Client, namespace: &str) -> kube::Result<()> {
        let resource = Request::new(api::objects(client, CONFIG_MAPS, Some(namespace)).resource_url());
        let request = resource.create(&PostParams::default(), self.body.clone());
        // The answer repeats the binary, which is of no interest.
        let created: PartialObjectMeta<ConfigMap> = client.request(request.map_err(kube::Error::BuildRequest)?).await?;
        self.remember(namespace, &created.metadata.uid.unwrap_or_default());
        Ok(())
    }

    fn remember(&self, namespace: &str, uid: &str) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.insert(namespace.to_owned(), uid.to_owned());
    }
}

async fn label(client: &Client, namespace: &str, value: Value) -> kube::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let patch = json!({"metadata": {"labels": {SHIM_DELIVERY_LABEL: value}}});
    namespaces.patch_metadata(namespace, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fake::{Answer, client};

    const POLICY: &str = "GET /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/";
    const BINDING: &str = "GET /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/";
    const CONFIG_MAPS: &str = "/api/v1/namespaces/team/configmaps";
    const NAMESPACE: &str = "PATCH /api/v1/namespaces/team?";
    const REASON: &str = "no ConfigMap of the shim is delivered, because anybody could write istio-aux-shim-*: there is no \
                          ValidatingAdmissionPolicy istio-aux-shim-config-maps; next: apply \
                          deploy/components/config-map-delivery";

    fn deliverer() -> Deliverer {
        Deliverer::new(ShimBinary::of(b"\x7fELF"))
    }

    fn opted_in(delivery: Option<&str>) -> Map {
        let mut labels = Map::from([("istio-aux.io/injection".to_owned(), "enabled".to_owned())]);
        labels.extend(delivery.map(|value| (SHIM_DELIVERY_LABEL.to_owned(), value.to_owned())));
        labels
    }

    fn object(kind: &str) -> Value {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "uid": "1"}})
    }

    /// The answers of a server whose policies are in force.
    fn guarded() -> Vec<Answer> {
        let binding = |name: &str| {
            json!({"apiVersion": "v1", "kind": "B", "metadata": {"name": name},
                "spec": {"policyName": name, "validationActions": ["Deny"]}})
        };
        let both = |name: &str| {
            [
                Answer::ok(&format!("{POLICY}{name}"), object("P")),
                Answer::ok(&format!("{BINDING}{name}"), binding(name)),
            ]
        };
        NAMES.iter().flat_map(|name| both(name)).collect()
    }

    #[tokio::test]
    async fn a_namespace_that_opts_in_gets_the_config_map_and_then_the_label() {
        let mut answers = guarded();
        answers.push(Answer::ok(&format!("POST {CONFIG_MAPS}"), object("ConfigMap")));
        answers.push(Answer::ok(NAMESPACE, object("Namespace")));
        let (client, requests) = client(answers);
        let done = deliverer().deliver(&client, "team", &opted_in(None)).await.unwrap();
        assert_eq!(requests.writes(), [format!("POST {CONFIG_MAPS}"), "PATCH /api/v1/namespaces/team".to_owned()]);
        let value = concat!("set label istio-aux.io/shim-delivery=config-map-", env!("CARGO_PKG_VERSION"));
        assert_eq!(done.changed, ["created ConfigMap istio-aux-shim-3bdbb4fe83", value]);
        assert!(done.is_wanted && done.notices.is_empty());
    }

    #[tokio::test]
    async fn without_the_policy_nothing_is_delivered_and_one_line_says_why() {
        let (client, requests) = client([Answer::ok(NAMESPACE, object("Namespace"))]);
        let done = deliverer().deliver(&client, "team", &opted_in(Some("config-map-0.0.1"))).await.unwrap();
        assert_eq!(requests.writes(), ["PATCH /api/v1/namespaces/team"], "the label goes");
        let notices: Vec<&str> = done.notices.iter().map(|notice| notice.text.as_str()).collect();
        assert_eq!(notices, [REASON]);
        assert!(!requests.all().iter().any(|line| line.contains(CONFIG_MAPS)), "{:?}", requests.all());
    }

    #[tokio::test]
    async fn somebody_elses_config_map_is_left_as_it_is() {
        let mut answers = guarded();
        let name = deliverer().binary.config_map_name();
        let mut theirs = deliverer().binary.config_map();
        theirs["metadata"]["labels"] = json!({});
        answers.push(Answer::ok(&format!("GET {CONFIG_MAPS}/{name}"), theirs));
        let (client, requests) = client(answers);
        let done = deliverer().deliver(&client, "team", &opted_in(None)).await.unwrap();
        assert!(requests.writes().is_empty());
        assert_eq!(done.notices[0].reason, "ConfigMapNotOurs");
    }

    #[tokio::test]
    async fn a_config_map_that_the_server_does_not_take_leaves_no_label() {
        let mut answers = guarded();
        answers.push(Answer::forbidden(&format!("POST {CONFIG_MAPS}"), "exceeded quota: maps"));
        answers.push(Answer::ok(NAMESPACE, object("Namespace")));
        let (client, requests) = client(answers);
        let done = deliverer().deliver(&client, "team", &opted_in(Some("config-map-0.0.1"))).await.unwrap();
        assert_eq!(requests.writes(), [format!("POST {CONFIG_MAPS}"), "PATCH /api/v1/namespaces/team".to_owned()]);
        assert_eq!(done.changed, ["removed label istio-aux.io/shim-delivery"]);
        assert!(done.notices[0].text.ends_with("exceeded quota: maps"), "{:?}", done.notices);
    }

    #[tokio::test]
    async fn a_namespace_that_goes_meanwhile_is_no_failure() {
        let mut answers = guarded();
        answers.push(Answer::failure(&format!("POST {CONFIG_MAPS}"), 404, "namespaces \"team\" not found"));
        let (client, _) = client(answers);
        let done = deliverer().deliver(&client, "team", &opted_in(None)).await.unwrap();
        assert!(done.changed.is_empty() && done.notices.is_empty());
    }

    #[tokio::test]
    async fn a_settled_namespace_costs_one_read_of_metadata_and_the_policies_are_read_once() {
        let mut answers = guarded();
        let (deliverer, settled) = (deliverer(), super::super::plan::label_value());
        let mut config_map = deliverer.binary.config_map();
        config_map["metadata"]["uid"] = json!("1");
        let request = format!("GET {CONFIG_MAPS}/{}", deliverer.binary.config_map_name());
        answers.push(Answer::ok(&request, config_map));
        let (client, requests) = client(answers);
        for _ in 0..3 {
            let done = deliverer.deliver(&client, "team", &opted_in(Some(&settled))).await.unwrap();
            assert!(done.changed.is_empty() && done.notices.is_empty() && done.is_wanted);
        }
        let accepted = requests.accepted();
        let of_metadata = accepted.iter().filter(|accepted| accepted.contains("PartialObjectMetadata")).count();
        assert_eq!((requests.all().len(), of_metadata), (4 + 3, 2), "{:?}", requests.all());
    }

    #[tokio::test]
    async fn a_namespace_that_asks_for_nothing_costs_nothing() {
        let (client, requests) = client([]);
        let done = deliverer().deliver(&client, "team", &Map::new()).await.unwrap();
        assert!(requests.all().is_empty() && !done.is_wanted);
    }
}
