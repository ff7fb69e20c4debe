//! Chooses the compiler for eBPF by what is installed.

use std::{path::PathBuf, process::Command};

/// A compiler that has `core` for eBPF, or its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// Debian's `rustc-web`, with `core` built for eBPF in `libstd-rust-web-dev-bpf`. Called by its
    /// path, so that it serves beside a rustup and on a machine without one.
    Debian,
    /// rustup's nightly with its component rust-src: aya's usual way.
    Nightly,
}

impl Toolchain {
    /// The first that is here and complete, for `target`.
    pub fn find(target: &str) -> Option<Toolchain> {
        [Toolchain::Debian, Toolchain::Nightly].into_iter().find(|toolchain| toolchain.is_complete(target))
    }

    /// What it is called in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Toolchain::Debian => "/usr/bin/cargo (Debian)",
            Toolchain::Nightly => "nightly (rustup)",
        }
    }

    /// A command that runs its cargo, which will call its rustc.
    pub fn cargo(self) -> Command {
        self.run("cargo")
    }

    /// Whether `core` has to be built along.
    pub const fn builds_core(self) -> bool {
        matches!(self, Toolchain::Nightly)
    }

    fn run(self, program: &str) -> Command {
        match self {
            Toolchain::Debian => {
                let mut command = Command::new(format!("/usr/bin/{program}"));
                // cargo looks for rustc on PATH, where rustup's may stand in front.
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
        let (what, below) = match self {
            Toolchain::Debian => (vec!["--print", "target-libdir", "--target", target], ""),
            Toolchain::Nightly => {
                (vec!["--print", "sysroot"], "lib/rustlib/src/rust/library/core/src/lib.rs")
            }
        };
        // The outer cargo's choice of compiler must not answer for this toolchain.
        let output = self.run("rustc").env_remove("RUSTUP_TOOLCHAIN").args(what).output();
        let Ok(output) = output else { return false };
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()).join(below);
        output.status.success() && path.exists()
    }
}
