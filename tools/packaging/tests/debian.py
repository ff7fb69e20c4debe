"""A fresh Debian in a folder, booted with its own systemd in namespaces of its own."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT = 60.0
"""Seconds; longer than any step takes on a busy machine."""


class Debian:
    """A machine: a tree of a release of Debian with `packages` and without a tool chain."""

    def __init__(self, release: str, packages: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sumac-debian-", dir="/var/tmp")
        self.root = pathlib.Path(self._folder.name) / "root"
        self._cgroup = f"sumac-debian-{os.getpid()}"
        self._machine: subprocess.Popen[bytes] | None = None
        self._init = 0
        options = ["--variant=minbase", "--quiet", "--skip=cleanup/apt", "--dpkgopt=force-unsafe-io"]
        apt = ['--aptopt=Acquire::Languages "none"', '--aptopt=APT::Install-Recommends "false"',
               '--aptopt=Acquire::Retries "3"']
        command = ["mmdebstrap", *options, *apt, f"--include={','.join(packages)}", release,
                   str(self.root)]
        self._checked(command, timeout=10 * TIMEOUT)
        # It fails where the kernel's modules are out of reach, and the system is then degraded.
        (self.root / "etc/systemd/system/systemd-modules-load.service").symlink_to("/dev/null")

    def download(self, *debs: str) -> None:
        """Fetches what packages depend on: once booted, the machine has no network."""
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        self._checked(
            ["chroot", str(self.root), "apt-get", "install", "--yes", "-qq", "--download-only", *debs],
            5 * TIMEOUT,
        )

    def boot(self) -> None:
        """Starts systemd, and waits until it has started all units."""
        command = ["unshare", "--mount", str(HERE / "boot.sh"), str(self.root), self._cgroup]
        self._machine = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        children = pathlib.Path(f"/proc/{self._machine.pid}/task/{self._machine.pid}/children")

        def is_running() -> bool:
            if self._machine is not None and self._machine.poll() is not None:
                raise AssertionError(f"the machine ended with {self._machine.returncode}")
            self._init = int((children.read_text().split() or ["0"])[0])
            return self._init != 0 and "running" in self.inside("systemctl", "is-system-running", check=False)

        self.wait(is_running, "systemd has started its units")

    def inside(self, *argv: str, check: bool = True, **environment: str) -> str:
        """Runs a command in the machine, and returns what it prints."""
        settings = [f"{name}={value}" for name, value in environment.items()]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
        # Root and folder are systemd's: entering a mount namespace has those of the namespace, which differ
        # in a chroot.
        command = ["nsenter", "--target", str(self._init), "--all", "--root", "--wd", "--", "env", "-i", path,
                   "LANG=C.UTF-8", *settings, *argv]
        return self._checked(command, 2 * TIMEOUT, check=check)

    def write(self, path: str, text: str) -> None:
        """Writes a file in the machine, of root."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @staticmethod
    def wait(condition, purpose: str) -> None:  # noqa: ANN001
        """Waits until the condition holds."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"timed out waiting until {purpose}")
            time.sleep(0.1)

    def close(self) -> None:
        """Ends all processes of the machine, and removes the tree."""
        if self._machine is not None:
            self._machine.kill()
            self._machine.wait()
            # Its processes are gone, but the kernel may take a moment with their cgroups.
            script = (
                'mount -t cgroup2 cgroup2 "$1" && for try in $(seq 100); do '
                'find "$1/$2" -depth -type d -exec rmdir {} +; [ -d "$1/$2" ] || break; sleep 0.1; done'
            )
            mount = ["unshare", "--mount", "sh", "-c", script, "sh", str(self.root / "mnt"), self._cgroup]
            subprocess.run(mount, check=False, stderr=subprocess.DEVNULL)
        self._folder.cleanup()

    @staticmethod
    def _checked(command: list[str], timeout: float, check: bool = True) -> str:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
            timeout=timeout, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
        if check and ran.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout}")
        return ran.stdout
