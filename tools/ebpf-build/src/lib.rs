//! Builds an eBPF crate from the build script of the crate that loads it.
