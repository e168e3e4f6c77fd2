//! The CNI plugin, and what it says to the node agent. It does nothing itself: the agent starts and ends the proxies.

#![forbid(unsafe_code)]

pub mod agent;
pub mod input;
pub mod plugin;
pub mod protocol;
