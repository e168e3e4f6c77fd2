//! What an installation of the webhook consists of: its manifests and its versions.

mod kinds;
mod manifests;
mod versions;

pub(crate) use self::kinds::INSTALLED;
pub(crate) use self::manifests::{Images, manifests};
pub(crate) use self::versions::{Versions, client_version, versions};
