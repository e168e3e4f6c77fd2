//! Tenants of Kubeflow: the webhook's two entries for them, and the controller. Installs the controller, and leaves it there.

mod clients;
mod controller;
