//! What needs neither a cluster nor other programs.

mod chart_readme;
mod context;
