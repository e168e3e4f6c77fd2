//! Knows an installation of the webhook: its manifests and its versions.

mod manifests;
mod versions;
mod webhook;

pub(crate) use self::manifests::{all_objects, manifests, pipelines_role, resources};
pub(crate) use self::versions::{CLIENT_VERSION, Used, Versions, versions};
pub(crate) use self::webhook::{Webhook, configurations, installed_settings, pods_of, webhooks};
