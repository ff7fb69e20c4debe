//! Generates the messages and clients of the switch's protocols from their published definitions, without
//! `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const DEFINITIONS: &[&str] = &["p4/v1/p4runtime.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let definitions = protox::compile(DEFINITIONS, ["proto"])?;
    // P4Info in its text form is parsed by these.
    fs::write(out.join("definitions.bin"), definitions.encode_to_vec())?;
    tonic_prost_build::configure().build_server(false).compile_fds(definitions)?;
    let bfruntime = protox::compile(["bfrt/bfruntime.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(bfruntime)?;
    Ok(())
}
