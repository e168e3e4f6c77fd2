//! What is read of a pod's JSON. The rest takes no memory.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::COUNT_LIMIT;
use crate::injector::is_of_proxy;

/// Is a pod.
#[derive(Deserialize)]
pub(super) struct Document {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
    #[serde(default)]
    pub(super) status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) generate_name: Option<String>,
    #[serde(default, deserialize_with = "labels")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "annotations")]
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) owner_references: Option<Vec<Owner>>,
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    deserializer.deserialize_map(Entries(|_| true))
}

fn annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    deserializer.deserialize_map(Entries(is_of_proxy))
}

/// Keeps the entries of these names. The others take no memory: there may be 100,000 of them.
struct Entries(fn(&str) -> bool);

impl<'de> Visitor<'de> for Entries {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "at most {COUNT_LIMIT} labels")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if !(self.0)(&name) {
                map.next_value::<IgnoredAny>()?;
            } else if kept.len() < COUNT_LIMIT {
                kept.insert(name, map.next_value()?);
            } else {
                return Err(A::Error::invalid_length(COUNT_LIMIT + 1, &self));
            }
        }
        Ok(kept)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Owner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) controller: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) containers: Vec<Contained>,
    pub(super) init_containers: Option<Vec<Contained>>,
    pub(super) node_name: Option<String>,
    pub(super) service_account_name: Option<String>,
    pub(super) runtime_class_name: Option<String>,
    pub(super) overhead: Option<BTreeMap<String, Quantity>>,
    pub(super) host_aliases: Option<Vec<HostAlias>>,
}

#[derive(Deserialize)]
pub(super) struct HostAlias {
    pub(super) ip: String,
    #[serde(default)]
    pub(super) hostnames: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Contained {
    pub(super) name: String,
    pub(super) ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
pub(super) struct Port {
    pub(super) name: Option<String>,
    #[serde(rename = "containerPort")]
    pub(super) number: i32,
    pub(super) protocol: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) phase: Option<String>,
    pub(super) qos_class: Option<String>,
}
