//! What the webhook and the shim agree on: the names users write and read, and the shim's arguments.
//! Nothing else spells these names. No behaviour lives here.

#![forbid(unsafe_code)]

pub mod args;
pub mod endpoint;
pub mod names;
pub mod policy;
