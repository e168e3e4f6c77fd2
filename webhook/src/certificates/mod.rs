//! The server's certificate. It comes from files that someone else renews, or is self-signed: made here, stored in a Secret and
//! trusted by the webhook configuration. This module does not know where the certificate is used.

pub(crate) mod files;
pub(crate) mod plan;
pub(crate) mod rotator;
pub(crate) mod serving_cert;
pub(crate) mod store;

pub(crate) use self::store::request_renewal;
