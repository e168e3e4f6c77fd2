//! What the webhook and the shim agree on: the names users write and read, restart policies, endpoints, the shim's
//! arguments, each with its one way of being written and read. Nothing else spells these names; nothing is decided here.

#![forbid(unsafe_code)]

pub mod args;
pub mod endpoint;
pub mod error_chain;
pub mod kind;
pub mod names;
pub mod policy;
pub mod version;
