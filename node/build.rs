//! Generates the gRPC clients of containerd and istiod. protox reads the definitions, so that no protoc is needed: the crate
//! containerd-client, which has the same ones of containerd, needs it at each build.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let definitions = protox::compile(["containers.proto", "tasks.proto", "cri.proto", "ca.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(definitions)?;
    Ok(())
}
