//! `istio-aux-webhook`: the admission webhook.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use webhook::WebhookArgs;

/// Musl's own allocator gives memory back to the kernel after each review: half of its CPU time went into that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    webhook::parse().map_or_else(|status| status, WebhookArgs::run)
}
