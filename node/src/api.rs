//! The gRPC clients that `build.rs` generates.
#![allow(missing_docs, unreachable_pub, clippy::pedantic, reason = "generated code")]

pub mod containers {
    tonic::include_proto!("containerd.services.containers.v1");
}

pub mod tasks {
    tonic::include_proto!("containerd.services.tasks.v1");
}

pub mod cri {
    tonic::include_proto!("runtime.v1");
}

pub mod ca {
    tonic::include_proto!("istio.v1.auth");
}
