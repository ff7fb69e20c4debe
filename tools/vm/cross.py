#!/usr/bin/python3
"""Runs cargo for another processor, with C libraries of Debian's archive and GNU's cross compiler:

  tools/vm/cross.py build --release -p sumac -p sumac-agg      programs in target/aarch64-unknown-linux-gnu
  tools/vm/cross.py test --no-run -p sumac-wire                test binaries, which `tools/vm/run.py` runs

It needs gcc-aarch64-linux-gnu (`tools/setup.sh --arm64`). What else there is for arm64 is downloaded into
target/vm and not installed: libelf, zlib and, where there is no rustup, Rust's standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from architecture import ARM64, Architecture
from archive import Archive, Unreachable

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "target" / "vm"
LIBRARIES = ("libelf-dev", "libelf1", "zlib1g-dev", "zlib1g")
STANDARD_LIBRARY = "libstd-rust-web-dev"


def environment(architecture: Architecture = ARM64) -> dict[str, str]:
    """Returns the environment in which cargo builds for an architecture; downloads what that needs."""
    gnu = architecture.gnu
    if shutil.which(f"{gnu}-gcc") is None:
        raise Unreachable(f"{gnu}-gcc is not installed: tools/setup.sh --{architecture.name}")
    archive = Archive(CACHE / f"archive-{architecture.name}", architecture)
    archive.update()
    root = CACHE / f"libraries-{architecture.name}"
    archive.unpack(LIBRARIES, root)
    flags = [f"-Lnative={root}/usr/lib/{gnu}"]
    flags.append(f"-Clink-arg=-Wl,-rpath-link,{root}/lib/{gnu}:{root}/usr/lib/{gnu}")
    flags += standard_library(architecture, archive)
    target = architecture.rust
    upper = target.upper().replace("-", "_")
    include = f"-I{root}/usr/include"
    inherited = {name: value for name, value in os.environ.items() if name != "RUSTFLAGS"}
    return {
        **inherited,
        "CARGO_BUILD_TARGET": target,
        f"CARGO_TARGET_{upper}_LINKER": f"{gnu}-gcc",
        # RUSTFLAGS is for all targets, and would take precedence.
        f"CARGO_TARGET_{upper}_RUSTFLAGS": " ".join([*flags, *os.environ.get("RUSTFLAGS", "").split()]),
        f"CFLAGS_{target.replace('-', '_')}": include,
        # libbpf-sys and libxdp-sys call these by their own names.
        "LIBBPF_SYS_EXTRA_CFLAGS": include,
        "AR": f"{gnu}-ar", "LD": f"{gnu}-ld", "OBJCOPY": f"{gnu}-objcopy",
        # clang compiles libxdp's BPF objects with the kernel's headers of the architecture.
        "C_INCLUDE_PATH": f"/usr/{gnu}/include",
    }


def standard_library(architecture: Architecture, archive: Archive) -> list[str]:
    """Returns the compiler's flags for the standard library; rustup has one of each target."""
    if shutil.which("rustup") is not None:
        command = ["rustup", "target", "add", architecture.rust]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return []
    root = CACHE / f"{STANDARD_LIBRARY}-{architecture.name}"
    archive.unpack([STANDARD_LIBRARY], root)
    return [f"-L{root}/usr/lib/rustlib/{architecture.rust}/lib"]


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__, file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        return 0 if len(sys.argv) > 1 else 2
    try:
        variables = environment()
    except Unreachable as error:
        print(f"cross.py: {error}", file=sys.stderr)
        return 3
    return subprocess.run(["cargo", *sys.argv[1:]], cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
