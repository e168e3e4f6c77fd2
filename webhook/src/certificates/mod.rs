//! Keeps the server's certificate. It is read from files that another program renews, or it is self-signed: issued here, stored
//! in a Secret and trusted by the webhook configuration.

pub(crate) mod files;
pub(crate) mod plan;
pub(crate) mod rotator;
pub(crate) mod serving_cert;
pub(crate) mod store;

/// Holds the position of the PEM text that cannot be used, and the reason.
pub(crate) type Unusable = (usize, serving_cert::Error);
