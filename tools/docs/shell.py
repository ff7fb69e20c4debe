"""A shell that runs a page's blocks one after the other: its folder, variables and background jobs stay."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import tempfile
import time

# Seconds; longer than most blocks take on a busy machine.
TIMEOUT = 120.0
STOP_TIMEOUT = 10.0


class BlockFailed(Exception):
    """A command of a block failed, or did not end."""


class Shell:
    """A bash with the prefix `command` in front of it, as for another user or a namespace."""

    def __init__(
        self, command: list[str], folder: pathlib.Path, environment: dict[str, str], timeout: float = TIMEOUT
    ) -> None:
        self.folder = folder
        self._timeout = timeout
        self._command = command
        self._files = tempfile.TemporaryDirectory(prefix="sumac-docs-", dir="/tmp")
        self._work = pathlib.Path(self._files.name)
        self._work.chmod(0o777)
        self._log = self._work / "output"
        self._blocks = 0
        with open(self._log, "wb") as log:
            # Its own process group, with all that the blocks leave running.
            self._bash = subprocess.Popen(
                [*command, "bash"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=log,
                stderr=subprocess.STDOUT, text=True, bufsize=1, start_new_session=True,
            )

    def run(self, text: str) -> str:
        """Runs a block up to its first command that fails, and returns the output."""
        self._blocks += 1
        script, done = (self._work / f"{kind}{self._blocks}" for kind in ("block", "done"))
        script.write_text(f"set -euo pipefail\n{text}")
        start = self._log.stat().st_size
        assert self._bash.stdin is not None
        self._bash.stdin.write(f". {script} </dev/null; echo > {done}\n")
        deadline = time.monotonic() + self._timeout
        while not done.exists() and self._bash.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        output = self._log.read_bytes()[start:].decode(errors="replace")
        if not done.exists():
            state = "failed" if self._bash.poll() is not None else f"did not end in {self._timeout:.0f} s"
            raise BlockFailed(f"{state}:\n{text}\nits output:\n{output}")
        return output

    def write(self, name: str, text: str) -> None:
        """Writes a file, as who runs the blocks."""
        subprocess.run([*self._command, "tee", str(self.folder / name)], input=text, text=True,
                       stdout=subprocess.DEVNULL, check=True)

    def stop(self) -> None:
        """Ends the shell, and the processes that the blocks left running."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._bash.pid, number)
            except ProcessLookupError:
                break
            self._wait_for_group()
        self._bash.wait()
        self._files.cleanup()

    def _wait_for_group(self) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline:
            self._bash.poll()
            try:
                os.killpg(self._bash.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
