"""An aggregator and daemons on this machine's loopback, whose jobs users open by a rule.

    daemon 127.x.y.11 (n1) ---+
                              +--- sumac-agg serve --plane host, 127.x.y.1
    daemon 127.x.y.12 (n2) ---+

x and y derive from the process id, so that concurrent tests do not share addresses.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LAUNCHERS = ROOT / "tools/launchers"
TEST_TIMEOUT = 60.0
"""Seconds; longer than any step takes on a busy machine."""


def programs() -> Path | None:
    """Returns the folder of the built programs: SUMAC_BIN_DIR, else that of the newest build."""
    folder = os.environ.get("SUMAC_BIN_DIR")
    places = [Path(folder)] if folder else [ROOT / "target" / kind for kind in ("release", "debug")]
    built = [place for place in places if (place / "sumac").exists() and (place / "sumac-agg").exists()]
    return max(built, key=lambda place: (place / "sumac").stat().st_mtime, default=None)


def wait_until(what: str, condition: Callable[[], bool], timeout: float = TEST_TIMEOUT) -> None:
    """Waits until the condition holds; fails by the name of it."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(0.05)


class Processes:
    """Programs in the foreground with a log file each; all end with ``stop``."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._signals: dict[str, signal.Signals] = {}

    def start(
        self, name: str, *command: str | Path, environment: dict[str, str] | None = None,
        ends_by: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Starts a program; ``name`` is that of its log file."""
        self._signals[name] = ends_by
        with open(self._logs / f"{name}.log", "ab") as log:
            everything = {**os.environ, **(environment or {})}
            self._running[name] = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, env=everything
            )

    def log(self, name: str) -> str:
        """Returns what the program has written."""
        return (self._logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def has_ended(self, name: str) -> bool:
        """Returns whether the program is not running any more."""
        return self._running[name].poll() is not None

    def end(self, name: str) -> None:
        """Ends one program."""
        process = self._running.pop(name)
        process.send_signal(self._signals[name])
        try:
            process.wait(TEST_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Ends all programs, the latest first."""
        for name in reversed(list(self._running)):
            self.end(name)


class Hosts:
    """The aggregator, and a daemon for each of the nodes."""

    NODES = ("n1", "n2")

    def __init__(self, rules: str) -> None:
        """``rules``: lines of the daemons' configuration."""
        binaries = programs()
        assert binaries is not None
        self.bin = binaries
        self._folder = tempfile.TemporaryDirectory(prefix="sumac-launchers-")
        self.path = Path(self._folder.name)
        # Jobs of other users connect to the sockets in it.
        self.path.chmod(0o755)
        self.processes = Processes(self.path)
        self.net = f"127.{1 + os.getpid() // 256 % 254}.{os.getpid() % 256}"
        self._rules = rules
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        state = self.path / "aggregator"
        self.processes.start(
            "aggregator", self.bin / "sumac-agg", "serve", "--plane", "host", "--state-dir", state, "--slots",
            "1024", "--share", "100",
            "--elements", "352", "--listen", f"{self.net}.1:48600", "--data-ip", f"{self.net}.1",
        )
        command = [str(self.bin / "sumac-agg"), "token", "--state-dir", str(state)]
        self.token = self.path / "token"
        self.token.touch(mode=0o600)
        self.token.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for node in self.NODES:
            self.start_daemon(node)

    def start_daemon(self, node: str) -> None:
        """Starts a node's daemon and waits until it answers."""
        config = self.path / f"{node}.toml"
        address = 11 + self.NODES.index(node)
        config.write_text(
            f'socket = "{self.socket(node)}"\nbackend = "udp"\naddress = "{self.net}.{address}"\n'
            f'aggregator = "{self.net}.1:48600"\nsecret_file = "{self.token}"\n{self._rules}'
        )
        self.processes.start(node, self.bin / "sumac", "daemon", "--config", config)
        wait_until(f"the daemon of {node} answers", lambda: self._answers(node))

    def _answers(self, node: str) -> bool:
        assert not self.processes.has_ended(node), self.processes.log(node)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            try:
                client.connect(str(self.socket(node)))
            except OSError:
                return False
        return True

    def socket(self, node: str) -> Path:
        """Returns the path of a node's socket."""
        return self.path / f"{node}.sock"

    def stop(self) -> None:
        """Ends all processes and removes the files."""
        self.processes.stop()
        self._folder.cleanup()
