//! Builds the program of the cables' ports, which `src/marking.rs` loads.

use std::{env, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let object = sumac_ebpf_build::build(&here.join("../cable-prog"), "sumac-cable", &[])?;
    println!("cargo:rustc-env=SUMAC_CABLE_OBJECT={}", object.display());
    Ok(())
}
