"""A disk for machines whose first process is systemd: Debian 13 with Sumac's packages, not installed yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from archive import Unreachable
from cross import ROOT
from image import Image

PACKAGING = ROOT / "tools" / "packaging"
sys.path.append(str(PACKAGING))

from debian_tree import CommandError, DebianTree, run_command  # noqa: E402

RELEASE = "trixie"
INCLUDED = ["systemd", "iproute2", "ethtool"]
SIZE = "2G"
"""Of the file system; the file is sparse."""
PACKAGES = "/packages"
"""The folder with Sumac's packages. What they need is in apt's cache: the machine has no network."""
MASKED = (
    # The console is the suite's.
    "getty.target", "serial-getty@.service",
    # The kernel's modules are not on the disk.
    "systemd-modules-load.service", "proc-sys-fs-binfmt_misc.automount",
    # Their programs would take apt's locks and the emulated CPUs.
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
)
_TIMEOUT = 600.0


def lacking() -> str | None:
    """Returns what making a disk lacks, if anything."""
    if os.geteuid() != 0:
        return "a tree of Debian needs root"
    missing = [name for name in ("mmdebstrap", "cargo-deb", "mke2fs") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}: tools/setup.sh --test" if missing else None


def make(programs: Path, files: Image, target: Path) -> None:
    """Writes a disk that has these files besides, with packages of the built programs.

    Raises `CommandError` where the packages cannot be installed.
    """
    with tempfile.TemporaryDirectory(prefix="sumac-packages-") as built:
        package = [str(PACKAGING / "package.sh"), str(programs), "--fast", "--output", built]
        subprocess.run(package, check=True, stdout=subprocess.DEVNULL)
        try:
            tree = DebianTree(RELEASE, INCLUDED)
        except CommandError as error:
            raise Unreachable(f"no tree of Debian {RELEASE}: {error}") from error
        try:
            _fill(tree, Path(built), files)
            target.unlink(missing_ok=True)
            # Without a journal, which the machine's end would leave unwritten.
            command = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(tree.root)]
            run_command([*command, str(target), SIZE], _TIMEOUT)
        finally:
            tree.close()


def _fill(tree: DebianTree, built: Path, files: Image) -> None:
    names = []
    for package in ("sumac", "sumac-agg"):
        [deb] = (built / "debian").glob(f"{package}_*.deb")
        names.append(f"{PACKAGES}/{deb.name}")
        (tree.root / PACKAGES[1:]).mkdir(exist_ok=True)
        shutil.copy(deb, tree.root / names[-1][1:])
    # The archive was within reach for the tree: what fails now is a fault of the packages.
    tree.download(*names)
    files.lay(tree.root)
    tree.mask(*MASKED)
    wanted = tree.root / "etc/systemd/system/multi-user.target.wants/vm.service"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.symlink_to("/etc/systemd/system/vm.service")
