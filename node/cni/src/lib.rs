//! The CNI plugin and its protocol with the node agent. It does nothing itself: the agent starts and ends the proxies.

#![forbid(unsafe_code)]

pub mod agent;
pub mod failure;
pub mod input;
pub mod logger;
pub mod plugin;
pub mod protocol;
