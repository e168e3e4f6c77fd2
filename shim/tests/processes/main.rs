//! `aux-shim` among real processes, in PID namespaces, without a cluster. Needs root.

mod pod;
mod supervising;
mod watching;
mod wrapping;
