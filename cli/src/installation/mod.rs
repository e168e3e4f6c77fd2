//! Knows an installation of the webhook: its manifests and its versions.

mod manifests;
mod versions;

pub(crate) use self::manifests::{Images, manifests, resources};
pub(crate) use self::versions::{Versions, client_version, versions};
