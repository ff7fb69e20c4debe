//! Builds the host's XDP program, which `program.rs` holds in the library.

use std::{env, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let object = sumac_ebpf_build::build(&here.join("../../xdp-prog"), "sumac-host", &[])?;
    println!("cargo:rustc-env=SUMAC_HOST_OBJECT={}", object.display());
    Ok(())
}
