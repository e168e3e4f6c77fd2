//! `aux-shim` among real processes, in PID namespaces, without a cluster. Needs root, and strace.

mod faults;
mod hostile;
mod parent;
mod pod;
mod reported;
mod starting_after;
mod supervising;
mod waking;
mod watching;
