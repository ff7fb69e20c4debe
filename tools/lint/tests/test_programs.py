"""Holds the programs that the sources start against the Debian packages that tools/setup.sh installs."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# Parts of every Debian system (Essential: yes).
ESSENTIAL = "essential"
# Built by this workspace, or started only where it exists.
OWN = "own"

PACKAGES = {
    # The eBPF crates build with Debian's tool chain.
    "cargo": "cargo-web",
    "bash": ESSENTIAL,
    "cat": ESSENTIAL,
    "g++": "build-essential",
    "nm": "build-essential",
    "pkg-config": "pkg-config",
    "readelf": "build-essential",
    "cp": ESSENTIAL,
    "dpkg-deb": ESSENTIAL,
    # Of wireshark-common, which tshark depends on.
    "dumpcap": "tshark",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "iperf3": "iperf3",
    "mdbook": OWN,
    "mke2fs": "e2fsprogs",
    "mount": "mount",
    "mmdebstrap": "mmdebstrap",
    "mpirun": "openmpi-bin",
    "nft": "nftables",
    "nsenter": "util-linux",
    "scancel": "slurm-client",
    "scontrol": "slurm-client",
    "setpriv": "util-linux",
    "shellcheck": "shellcheck",
    "sinfo": "slurm-client",
    "squeue": "slurm-client",
    "unshare": "util-linux",
    "perf": "linux-perf",
    "ping": "iputils-ping",
    # numpy's package depends on the interpreter.
    "/usr/bin/python3": "python3-numpy",
    "rustc": "rustc-web",
    "rustdoc": "rustc-web",
    "rustup": OWN,
    "sh": ESSENTIAL,
    "ss": "iproute2",
    "timeout": ESSENTIAL,
    "sleep": ESSENTIAL,
    "strace": "strace",
    # The name of a test for a missing program.
    "sumac-no-such-program": OWN,
    "sysctl": "procps",
    "tc": "iproute2",
    "tshark": "tshark",
    "valgrind": "valgrind",
}

# `run` is a simulation here.
SIMULATED = ROOT / "tools/figures/src/simulated"

# A call that starts a program, up to the program's name: a constructor or a method of the labs.
RUST = re.compile(r'(?:Command::new|\.command|\.run|\.inside|\.output)\(\s*(?:&?format!\(\s*)?"([^"\s]+)')
PYTHON = re.compile(r'(?:command\s*=\s*|which\(|(?:run|Popen|check_output|check_call)\(\s*)\[?\s*"([^"\s]+)"')


def sources() -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name != "target" and not name.startswith(".")]
        found += [Path(folder) / name for name in names if name.endswith((".rs", ".py"))]
    return found


def started(path: Path) -> set[str]:
    if SIMULATED in path.parents:
        return set()
    pattern = RUST if path.suffix == ".rs" else PYTHON
    # A name from a variable: `{BIN}`.
    return {name for name in pattern.findall(path.read_text(encoding="utf-8")) if "{" not in name}


def installed() -> set[str]:
    """The packages in the lists of tools/setup.sh."""
    text = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
    lists = re.findall(r"^\w+_packages=\((.*?)\)$", text, re.MULTILINE | re.DOTALL)
    lines = [line for body in lists for line in body.splitlines() if not line.lstrip().startswith("#")]
    return {word.strip('"') for line in lines for word in line.split()}


class Programs(unittest.TestCase):
    def test_every_program_comes_with_a_package_that_setup_installs(self) -> None:
        packages = installed()
        self.assertIn("iproute2", packages)
        for path in sources():
            for program in sorted(started(path)):
                with self.subTest(f"{path.relative_to(ROOT)}: {program}"):
                    self.assertIn(program, PACKAGES, "name its Debian package here, and in tools/setup.sh")
                    self.assertIn(
                        PACKAGES[program], packages | {ESSENTIAL, OWN}, "tools/setup.sh does not install it"
                    )

    def test_no_entry_is_stale(self) -> None:
        names = set().union(*(started(path) for path in sources()))
        self.assertEqual(set(PACKAGES) - names, set())

    def test_calls_are_found(self) -> None:
        for line in ('Command::new("ip")', 'namespace.run("ip link")',
                     'b.inside(&format!(\n  "ip link {x}"))', '.command("ip").args(["-j"])'):
            with self.subTest(line):
                self.assertEqual(RUST.findall(line), ["ip"])
        self.assertEqual(PYTHON.findall('subprocess.run(["ip", "link"])'), ["ip"])


if __name__ == "__main__":
    unittest.main()
