//! What an installation of the webhook consists of: its manifests, its versions, its removal.

mod kinds;
mod manifests;
mod uninstall;
mod versions;

pub(crate) use self::kinds::INSTALLED;
pub(crate) use self::manifests::{Images, manifests};
pub(crate) use self::uninstall::{find, uninstall};
pub(crate) use self::versions::{Versions, client_version, selector_of, versions};
