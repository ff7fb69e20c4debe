"""Debian packages by the machine's apt, with sources, lists and a cache of its own: nothing is installed, and
the machine's sources stay as they are. apt verifies the archive's signature and each package's hash."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from architecture import AMD64, Architecture

MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = ("bullseye", "bookworm", "bookworm-backports", "trixie-backports", "sid")
LISTS_AGE = 86_400
"""Seconds after which the lists of packages are read anew."""

CONFIGURATION = """
Dir::Etc::SourceList "{folder}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "{folder}/preferences";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "{folder}/lists";
Dir::Cache "{folder}/cache";
Acquire::Languages "none";
Acquire::Retries "2";
APT::Sandbox::User "root";
"""

# Of another processor nothing is installed here: what a package needs is downloaded with it.
FOREIGN = """
APT::Architecture "{name}";
APT::Architectures {{ "{name}"; }};
Dir::State::status "/dev/null";
"""

# Kernels need nothing of a later release, and QEMU has to run with this machine's libraries.
PREFERENCES = """
Package: *
Pin: release n=trixie-backports
Pin-Priority: 1

Package: *
Pin: release n=sid
Pin-Priority: 1
"""


class Unreachable(Exception):
    """The archive, or apt itself, is out of reach."""


class Archive:
    """Debian's archive of one architecture, cached in a folder."""

    def __init__(self, folder: Path, architecture: Architecture = AMD64) -> None:
        self._folder = folder.resolve()
        for part in ("lists/partial", "cache/archives/partial"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        sources = "".join(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n" for suite in SUITES)
        list_of_sources = self._folder / "sources.list"
        if not list_of_sources.exists() or list_of_sources.read_text() != sources:
            (self._folder / "updated").unlink(missing_ok=True)
        list_of_sources.write_text(sources)
        (self._folder / "preferences").write_text(PREFERENCES)
        configuration = CONFIGURATION if architecture.is_native else CONFIGURATION + FOREIGN
        made = configuration.format(folder=self._folder, name=architecture.name)
        (self._folder / "apt.conf").write_text(made)

    def update(self) -> None:
        """Reads the lists of packages, unless they are of today."""
        stamp = self._folder / "updated"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < LISTS_AGE:
            return
        self._apt("apt-get", "update", "--error-on=any")
        stamp.touch()

    def names(self, pattern: str) -> list[str]:
        """Returns the names of packages that match a regular expression."""
        found = self._apt("apt-cache", "search", "--names-only", pattern)
        return [line.split(" - ")[0] for line in found.splitlines()]

    def unpack(self, packages: Sequence[str], target: Path) -> None:
        """Downloads packages and extracts them, once."""
        if not target.exists():
            self._extract(target, "apt-get", "download", *packages)

    def unpack_with_libraries(self, release: str, packages: Sequence[str], target: Path) -> None:
        """The same for programs, with those of the packages they need that this machine lacks."""
        if target.exists():
            return
        downloads = self._folder / f"{target.name}.packages"
        (downloads / "partial").mkdir(parents=True, exist_ok=True)
        self._extract(
            target, "apt-get", "install", "--yes", "--download-only", "--no-install-recommends",
            "-o", f"Dir::Cache::Archives={downloads}", "-t", release, *packages, downloads=downloads,
        )

    def _extract(self, target: Path, *command: str, downloads: Path | None = None) -> None:
        downloads = downloads or self._folder / f"{target.name}.packages"
        downloads.mkdir(exist_ok=True)
        self._apt(*command, cwd=downloads)
        # Under another name until it is whole.
        partial = target.with_name(f"{target.name}.partial")
        for package in sorted(downloads.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, partial], check=True)
            package.unlink()
        partial.rename(target)

    def _apt(self, *command: str, cwd: Path | None = None) -> str:
        environment = {"APT_CONFIG": str(self._folder / "apt.conf"), "LC_ALL": "C",
                       "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        try:
            done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise Unreachable(f"{command[0]} is not installed") from error
        if done.returncode != 0:
            why = [line for line in done.stderr.splitlines() if line.startswith("E:")] or ["no reason given"]
            raise Unreachable(f"`{' '.join(command[:2])}` of Debian's archive failed: {why[0][2:].strip()}")
        return done.stdout
