//! What the programs share: the names that users write and read, restart policies, endpoints and the shim's arguments, which are the
//! contract of webhook and shim; and kinds, quantities, versions and the text of errors. Each is formatted and parsed in one place.
//! Nothing is decided here.

#![forbid(unsafe_code)]

pub mod args;
pub mod endpoint;
pub mod error_chain;
pub mod kind;
pub mod names;
pub mod policy;
pub mod quantity;
pub mod scrape;
pub mod version;
