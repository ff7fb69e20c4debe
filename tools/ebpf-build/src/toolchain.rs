//! The choice of a compiler for eBPF, by the installed ones.

use std::{path::PathBuf, process::Command};

/// A compiler that has `core` for eBPF, or its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// Debian's `rustc-web`, with `core` built for eBPF in `libstd-rust-web-dev-bpf`. It is called by its
    /// path, and so works with and without rustup.
    Debian,
    /// rustup's nightly with its component rust-src, as aya's documentation has it.
    Nightly,
}

impl Toolchain {
    /// Returns the first that is complete for `target`.
    pub fn find(target: &str) -> Option<Toolchain> {
        [Toolchain::Debian, Toolchain::Nightly].into_iter().find(|toolchain| toolchain.is_complete(target))
    }

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Toolchain::Debian => "/usr/bin/cargo (Debian)",
            Toolchain::Nightly => "nightly (rustup)",
        }
    }

    /// Returns a command that runs its cargo, which calls its rustc.
    pub fn cargo(self) -> Command {
        self.run("cargo")
    }

    /// Returns whether `core` must be built too.
    pub const fn builds_core(self) -> bool {
        matches!(self, Toolchain::Nightly)
    }

    fn run(self, program: &str) -> Command {
        match self {
            Toolchain::Debian => {
                let mut command = Command::new(format!("/usr/bin/{program}"));
                // cargo looks for rustc on PATH, where rustup's may precede.
                command.env("RUSTC", "/usr/bin/rustc");
                command
            }
            Toolchain::Nightly => {
                let mut command = Command::new("rustup");
                command.args(["run", "nightly", program]);
                command
            }
        }
    }

    fn is_complete(self, target: &str) -> bool {
        let (arguments, below) = match self {
            Toolchain::Debian => (vec!["--print", "target-libdir", "--target", target], ""),
            Toolchain::Nightly => {
                (vec!["--print", "sysroot"], "lib/rustlib/src/rust/library/core/src/lib.rs")
            }
        };
        // The outer cargo's choice must not select this rustc's toolchain.
        let output = self.run("rustc").env_remove("RUSTUP_TOOLCHAIN").args(arguments).output();
        let Ok(output) = output else { return false };
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()).join(below);
        output.status.success() && path.exists()
    }
}
