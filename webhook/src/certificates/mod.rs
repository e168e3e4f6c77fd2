//! The server's certificate: from files that somebody else renews, or of its own making, kept in a Secret and trusted by
//! its own webhook configuration. Where it is used is not known here.

pub(crate) mod cluster;
pub(crate) mod files;
pub(crate) mod keeper;
pub(crate) mod pair;
pub(crate) mod plan;
