//! The shim by `ConfigMap`: each scenario switches it on, and takes away all that is left of it.

mod delivery;
mod policies;
mod update;

use e2e::Namespace;
use e2e::config_map::Delivery;
use tokio::sync::{Mutex, MutexGuard};

/// Scenarios come one after the other: each changes the whole installation.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// Delivery by `ConfigMap`, and nobody else's scenario beside it. What a pattern binds last is dropped first: the delivery, and only
/// then is it the next scenario's turn.
async fn switched_on() -> (MutexGuard<'static, ()>, Delivery) {
    let guard = alone().await;
    (guard, Delivery::on())
}

/// Opts a namespace in.
fn opt_in(ns: &Namespace) {
    e2e::tenancy::label(ns, "istio-aux.io/injection=enabled");
}
