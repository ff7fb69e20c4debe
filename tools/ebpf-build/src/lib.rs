//! Builds an eBPF crate from the build script of the crate that loads it.
//!
//! eBPF crates build for another target with another compiler, so they are workspaces of their
//! own and cargo cannot depend on them. A loader's `build.rs` calls [`build`] instead:
//!
//! ```no_run
//! // build.rs
//! let manifest_dir = std::path::Path::new("../xdp-prog");
//! let object = sumac_ebpf_build::build(manifest_dir, "sumac-xdp", &[])?;
//! println!("cargo:rustc-env=SUMAC_XDP_OBJECT={}", object.display());
//! # Ok::<(), sumac_ebpf_build::BuildError>(())
//! ```
//!
//! and its library holds the object with `aya::include_bytes_aligned!(env!("SUMAC_XDP_OBJECT"))`.
#![forbid(unsafe_code)]

mod dep_info;
mod toolchain;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
};

pub use toolchain::Toolchain;

/// A failed build of an eBPF crate.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("{0} is not set: sumac_ebpf_build::build is for build scripts")]
    NotABuildScript(&'static str),
    #[error("no eBPF crate at {path}: {source}")]
    NoCrate { path: PathBuf, source: io::Error },
    #[error(
        "no compiler for eBPF: neither Debian's rustc-web with libstd-rust-web-dev-bpf nor rustup's nightly \
        with rust-src; run `make setup`"
    )]
    NoToolchain,
    #[error("bpf-linker is not on PATH; run `make setup`")]
    NoLinker,
    #[error("locking {path}: {source}")]
    Lock { path: PathBuf, source: io::Error },
    #[error("starting cargo with toolchain {toolchain}: {source}")]
    Spawn { toolchain: &'static str, source: io::Error },
    #[error("building {bin} in {dir} with toolchain {toolchain} failed; the compiler's messages are above")]
    Failed { bin: String, dir: PathBuf, toolchain: &'static str },
    #[error("reading {path}, which cargo should have written: {source}")]
    NoOutput { path: PathBuf, source: io::Error },
}

/// Builds binary `bin` of the eBPF crate at `manifest_dir` with features, and returns the object's path.
///
/// For build scripts: it reads the variables that cargo sets for the script, leaves the object in `OUT_DIR`,
/// and has cargo run the script again when a source of the object has changed. All profiles of the outer
/// build share the intermediate files, which do not depend on the profile.
pub fn build(manifest_dir: &Path, bin: &str, features: &[&str]) -> Result<PathBuf, BuildError> {
    let manifest = manifest_dir.join("Cargo.toml");
    let manifest =
        manifest.canonicalize().map_err(|source| BuildError::NoCrate { path: manifest, source })?;
    let dir = manifest.parent().unwrap_or(manifest_dir);
    let out_dir = PathBuf::from(variable("OUT_DIR")?);
    // OUT_DIR is <target>/<profile>/build/<package>/out.
    let target_dir = out_dir.ancestors().nth(4).unwrap_or(&out_dir).join("ebpf");
    let endian = variable("CARGO_CFG_TARGET_ENDIAN")?;
    let target = if endian == "big" { "bpfeb-unknown-none" } else { "bpfel-unknown-none" };

    let toolchain = Toolchain::find(target).ok_or(BuildError::NoToolchain)?;
    if !on_path("bpf-linker") {
        return Err(BuildError::NoLinker);
    }
    let _lock = lock(&target_dir)?;
    let core: &[&str] = if toolchain.builds_core() { &["-Z", "build-std=core"] } else { &[] };
    let status = cargo(toolchain, dir, &target_dir)
        .args(["build", "--release", "--locked", "--target", target, "--bin", bin])
        .args(["--features", &features.join(",")])
        .args(core)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags(&variable("CARGO_CFG_TARGET_ARCH")?))
        .status()
        .map_err(|source| BuildError::Spawn { toolchain: toolchain.name(), source })?;
    if !status.success() {
        let (bin, dir) = (bin.to_owned(), dir.to_owned());
        return Err(BuildError::Failed { bin, dir, toolchain: toolchain.name() });
    }

    let built = target_dir.join(target).join("release").join(bin);
    rerun_if_changed(&manifest, &built)?;
    // A private copy: another build, with other features, writes to the same path.
    let object = out_dir.join(bin);
    fs::copy(&built, &object).map_err(|source| BuildError::NoOutput { path: built, source })?;
    Ok(object)
}

/// Locks the shared files until the returned file is closed: builds for several crates run side by side.
fn lock(target_dir: &Path) -> Result<File, BuildError> {
    let path = target_dir.join("build.lock");
    let locked = fs::create_dir_all(target_dir).and_then(|()| {
        let file = File::create(&path)?;
        file.lock()?;
        Ok(file)
    });
    locked.map_err(|source| BuildError::Lock { path, source })
}

fn variable(name: &'static str) -> Result<OsString, BuildError> {
    env::var_os(name).ok_or(BuildError::NotABuildScript(name))
}

/// Returns the cargo of `toolchain`, without the outer cargo's variables: with the outer compiler's path,
/// flags or clippy's wrapper in its environment, the inner one would build with those.
fn cargo(toolchain: Toolchain, dir: &Path, target_dir: &Path) -> Command {
    let mut command = toolchain.cargo();
    for (name, _) in env::vars_os() {
        if is_outer_cargo(&name) && !command.get_envs().any(|(own, _)| own == name) {
            command.env_remove(name);
        }
    }
    // aya-ebpf uses one unstable feature, and build-std is one; "1" permits them in a stable compiler.
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", target_dir).current_dir(dir);
    command
}

fn is_outer_cargo(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    const KEPT: [&str; 4] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR"];
    let of_cargo = name == "CARGO" || name.starts_with("CARGO_") && !KEPT.iter().any(|k| name.starts_with(k));
    of_cargo
        || name.starts_with("RUSTC")
        || name.starts_with("RUSTDOC")
        || name == "RUSTFLAGS"
        || name == "TARGET"
}

/// Returns the compiler's flags in cargo's form: separated by unit separators.
///
/// BTF, and the debug information that it is generated from, describes maps with spin locks. `v3` has the
/// 32-bit comparisons, without which the verifier loses the bounds of lengths.
fn rustflags(arch: &OsStr) -> OsString {
    let mut flags = OsString::from("--cfg=bpf_target_arch=\"");
    flags.push(arch);
    flags.push("\"\u{1f}-Ctarget-cpu=v3\u{1f}-Cdebuginfo=2\u{1f}-Clink-arg=--btf");
    flags
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Prints every source of the object, with those of its path dependencies, for cargo.
fn rerun_if_changed(manifest: &Path, object: &Path) -> Result<(), BuildError> {
    let path = object.with_extension("d");
    let text = fs::read_to_string(&path).map_err(|source| BuildError::NoOutput { path, source })?;
    println!("cargo:rerun-if-changed={}", manifest.display());
    println!("cargo:rerun-if-changed={}", manifest.with_file_name("Cargo.lock").display());
    for source in dep_info::sources(&text) {
        println!("cargo:rerun-if-changed={source}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outer_cargos_variables_are_removed() {
        let table = [
            ("CARGO", true),
            ("CARGO_ENCODED_RUSTFLAGS", true),
            ("CARGO_CFG_TARGET_OS", true),
            ("RUSTC_WORKSPACE_WRAPPER", true),
            ("RUSTC", true),
            ("RUSTFLAGS", true),
            ("CARGO_HOME", false),
            ("CARGO_NET_OFFLINE", false),
            ("CARGO_REGISTRIES_MIRROR_INDEX", false),
            ("PATH", false),
            ("RUSTUP_HOME", false),
        ];
        for (name, removed) in table {
            assert_eq!(is_outer_cargo(OsStr::new(name)), removed, "{name}");
        }
    }

    #[test]
    fn a_missing_crate_is_named() {
        let error = build(Path::new("/nonexistent/ebpf"), "x", &[]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/ebpf/Cargo.toml"), "{error}");
    }
}
