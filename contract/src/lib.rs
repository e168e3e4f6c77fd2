//! The contract of webhook and shim: the names that users write and read, restart policies, endpoints and the shim's
//! arguments, each formatted and parsed in one place. Nothing is decided here.

#![forbid(unsafe_code)]

pub mod args;
pub mod endpoint;
pub mod error_chain;
pub mod kind;
pub mod names;
pub mod policy;
pub mod quantity;
pub mod version;
