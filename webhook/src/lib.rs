//! Serves admission reviews, and keeps the server's certificate. The package `inject` decides.

#![forbid(unsafe_code)]

mod args;
mod certificates;
pub mod log;
pub mod metrics;
pub mod serve;
mod server_version;
mod verify_injection;

pub use self::args::{WebhookArgs, parse};
