//! Builds the XDP programs that the library holds.

use std::path::Path;

fn main() -> Result<(), sumac_ebpf_build::BuildError> {
    let object = sumac_ebpf_build::build(Path::new("ebpf"), "sumac-agg-ebpf", &[])?;
    println!("cargo:rustc-env=SUMAC_AGG_OBJECT={}", object.display());
    Ok(())
}
