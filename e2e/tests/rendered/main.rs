//! The objects that the charts and the overlays render. Needs helm and kubectl, and no cluster: run by `make test-cluster`, or with both
//! programs in PATH by `cargo test -p e2e --features rendered --test rendered`.

mod chart;
mod kustomize;
mod manifests;
