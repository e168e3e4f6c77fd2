//! `aux-shim` among real processes, in PID namespaces, without a cluster. Needs root, and strace.

mod announcing;
mod faults;
mod hostile;
mod pod;
mod restarting;
mod starting_after;
mod supervising;
mod waking;
mod watching;
mod wrapped;
mod wrapping;
