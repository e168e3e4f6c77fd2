//! Tenants of Kubeflow: the webhook's two entries for them, and the controller. Installs the controller, and leaves it there.

mod clients;
mod controller;

use tokio::sync::{Mutex, MutexGuard};

/// Scenarios with the controller come one after the other: some change it, or the role that all tenants share.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    let guard = ALONE.lock().await;
    e2e::tenancy::install();
    guard
}
