//! Generates the messages and clients of the switch's protocols from their published definitions, without
//! `protoc`.

use std::error::Error;

const DEFINITIONS: [&str; 2] = ["p4/v1/p4runtime.proto", "bfrt/bfruntime.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    for definitions in DEFINITIONS {
        let messages = protox::compile([definitions], ["proto"])?;
        tonic_prost_build::configure().build_server(false).compile_fds(messages)?;
    }
    Ok(())
}
