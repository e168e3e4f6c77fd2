//! The server's certificate. It comes from files that something else renews, or is self-signed: made here, stored in a Secret and
//! trusted by the webhook configuration. This module does not know where the certificate is used.

pub(crate) mod files;
pub(crate) mod plan;
pub(crate) mod rotator;
pub(crate) mod serving_cert;
pub(crate) mod store;

/// Names the PEM text that cannot be used, by its position, and says why.
pub(crate) type Unusable = (usize, String);
