//! Builds the aggregator's programs with the one that replays jobs, which `programs/aggregator.rs` measures.

use std::{env, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let ebpf = here.join("../../nic-agg/ebpf");
    let object = sumac_ebpf_build::build(&ebpf, "sumac-agg-ebpf", &["replay"])?;
    println!("cargo:rustc-env=SUMAC_AGG_REPLAY_OBJECT={}", object.display());
    Ok(())
}
