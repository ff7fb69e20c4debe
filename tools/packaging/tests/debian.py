"""A fresh Debian, booted with its own systemd in namespaces of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time

from debian_tree import TIMEOUT, DebianTree, run_command

HERE = pathlib.Path(__file__).resolve().parent


class Debian(DebianTree):
    """A machine: a tree of a release of Debian with `packages`."""

    def __init__(self, release: str, packages: list[str]) -> None:
        super().__init__(release, packages)
        self._cgroup = f"sumac-debian-{os.getpid()}"
        self._machine: subprocess.Popen[bytes] | None = None
        self._init = 0
        # It fails where the kernel's modules are out of reach, and the system is then degraded.
        self.mask("systemd-modules-load.service")

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
        return run_command(command, 2 * TIMEOUT, check=check)

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
        super().close()
