"""A fresh Debian in a folder, without a tool chain."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile

TIMEOUT = 60.0
"""Seconds; longer than any step takes on a busy machine."""


class CommandError(Exception):
    """A command failed; the text has what it printed."""


class DebianTree:
    """A tree of a release of Debian with `packages`."""

    def __init__(self, release: str, packages: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sumac-debian-", dir="/var/tmp")
        self.root = pathlib.Path(self._folder.name) / "root"
        options = ["--variant=minbase", "--quiet", "--skip=cleanup/apt", "--dpkgopt=force-unsafe-io"]
        apt = ['--aptopt=Acquire::Languages "none"', '--aptopt=APT::Install-Recommends "false"',
               '--aptopt=Acquire::Retries "3"']
        command = ["mmdebstrap", *options, *apt, f"--include={','.join(packages)}", release,
                   str(self.root)]
        run_command(command, timeout=10 * TIMEOUT)

    def download(self, *debs: str) -> None:
        """Fetches what packages depend on: once booted, the machine has no network."""
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        run_command(
            ["chroot", str(self.root), "apt-get", "install", "--yes", "-qq", "--download-only", *debs],
            5 * TIMEOUT,
        )

    def write(self, path: str, text: str) -> None:
        """Writes a file in the machine, of root."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def mask(self, *units: str) -> None:
        """Keeps units of systemd from being started."""
        for unit in units:
            (self.root / "etc/systemd/system" / unit).symlink_to("/dev/null")

    def close(self) -> None:
        """Removes the tree."""
        self._folder.cleanup()


def run_command(command: list[str], timeout: float, check: bool = True) -> str:
    """Runs a command, and returns what it prints."""
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
        timeout=timeout, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    if check and ran.returncode != 0:
        raise CommandError(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout}")
    return ran.stdout
