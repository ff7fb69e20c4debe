//! Generates the messages and the server of BFRuntime from its published definition, without `protoc`.

use std::error::Error;

const DEFINITIONS: &str = "../../nic-agg/p4/proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={DEFINITIONS}");
    let definitions = protox::compile(["bfrt/bfruntime.proto"], [DEFINITIONS])?;
    tonic_prost_build::configure().build_client(false).compile_fds(definitions)?;
    Ok(())
}
