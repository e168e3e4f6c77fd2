//! Scenarios about what the API server admits, and about the tenancy controller. They run beside others, but one at a time, since they
//! change the controller and its Lease: `--test-threads=1`.

mod ca_bundle_only;
mod dry_run;
mod ended;
mod pod_default;
mod tenancy_clients;
mod tenancy_controller;
