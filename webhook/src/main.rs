//! `istio-aux`: the webhook and its command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// musl's own gives memory back to the kernel after each review: half of its CPU time went into that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    istio_aux::cli::main(std::env::args_os())
}
