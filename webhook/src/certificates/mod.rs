//! Keeps the server's certificate. It is read from files that another program renews, or it is self-signed: issued here, stored
//! in a Secret and trusted by the webhook configuration.

pub(crate) mod files;
pub(crate) mod plan;
pub(crate) mod rotator;
pub(crate) mod serving_cert;
pub(crate) mod store;

/// Names the PEM text that cannot be used, by its position, and says why.
pub(crate) type Unusable = (usize, String);
