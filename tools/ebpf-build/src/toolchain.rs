//! Chooses the compiler for eBPF by what is installed.

use std::{path::PathBuf, process::Command};

/// A rustup toolchain that builds `core` for eBPF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// rustup's nightly with its component rust-src: aya's usual way.
    Nightly,
    /// Debian's `rustc-web`, linked as a toolchain of this name by the set-up script.
    DebianBpf,
}

impl Toolchain {
    /// The first toolchain that is here and has the sources of `core`.
    pub fn find() -> Option<Toolchain> {
        [Toolchain::Nightly, Toolchain::DebianBpf].into_iter().find(|toolchain| toolchain.has_sources())
    }

    /// Its name for rustup.
    pub const fn name(self) -> &'static str {
        match self {
            Toolchain::Nightly => "nightly",
            Toolchain::DebianBpf => "debian-bpf",
        }
    }

    /// A command that runs this toolchain's cargo.
    pub fn cargo(self) -> Command {
        self.run("cargo")
    }

    fn run(self, program: &str) -> Command {
        let mut command = Command::new("rustup");
        command.args(["run", self.name(), program]);
        command
    }

    fn has_sources(self) -> bool {
        // The outer cargo's choice of compiler must not answer for this toolchain.
        let output = self.run("rustc").env_remove("RUSTUP_TOOLCHAIN").args(["--print", "sysroot"]).output();
        let Ok(output) = output else { return false };
        if !output.status.success() {
            return false;
        }
        let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end());
        sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
    }
}
