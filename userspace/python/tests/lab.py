"""An aggregator and two daemons on this machine's loopback, as processes.

    trainers --- daemon 127.x.y.11 ---+
                                      +--- sumac-agg serve --plane host, 127.x.y.1
    trainers --- daemon 127.x.y.12 ---+

The first daemon is a parameter host too. x and y derive from the process id, so that concurrent labs do not
share addresses.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import sumac

ROOT = pathlib.Path(__file__).resolve().parents[3]
SECRET = "a secret of some length"
TEST_TIMEOUT = 60.0
"""Seconds; longer than any step takes on a busy machine."""


def program(name: str) -> pathlib.Path | None:
    """Returns the path of a built program: from SUMAC_BIN_DIR, else the newest build."""
    folder = os.environ.get("SUMAC_BIN_DIR")
    places = [pathlib.Path(folder)] if folder else [ROOT / "target" / kind for kind in ("release", "debug")]
    built = [place / name for place in places if (place / name).exists()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


class Lab:
    """Two hosts with one daemon each, or as many as ``world``."""

    WORLD = 2
    _made = 0

    def __init__(self, world: int = WORLD, daemon_config: str = "", share: int = 100) -> None:
        """Starts all. ``daemon_config``: further lines of the daemons' configuration; ``share``: of
        ``serve``."""
        self.world = world
        self.ranks_per_daemon = 1
        """By which tests of several ranks at a daemon find a rank's."""
        self._daemon_config = daemon_config
        self._share = share
        self._folder = tempfile.TemporaryDirectory(prefix="sumac-python-")
        self.path = pathlib.Path(self._folder.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.daemons: list[subprocess.Popen[bytes]] = []
        number = os.getpid()
        Lab._made += 1
        # `sumac-agg status --host` and `drop` find an aggregator by this port, whatever its address.
        self.base_port = 50000 + (number * 8 + Lab._made) % 8000
        self._net = f"127.{1 + (number * 8 + Lab._made) // 256 % 254}.{(number * 8 + Lab._made) % 256}"
        self._secret = self.path / "secret"
        self._secret.write_text(SECRET)
        self._secret.chmod(0o600)
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def _start_all(self) -> None:
        self.aggregator = self.start_aggregator()
        self.token = self.path / "token"
        agg = program("sumac-agg")
        assert agg is not None
        command = [str(agg), "token", "--state-dir", self._state, "--secret-file", str(self._secret)]
        self.token.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        self.token.chmod(0o600)
        for rank in range(self.world):
            self.daemons.append(self.start_daemon(rank, self.token))
        self._await_parameter_host()

    def _await_parameter_host(self) -> None:
        """Waits until the coordinator has accepted the first daemon as a parameter host."""
        deadline = time.monotonic() + TEST_TIMEOUT
        with sumac.Client(self.socket(0)) as client:
            while True:
                try:
                    return client.open("parameter host ready", 0, 1, mode="dynamic").close()
                except sumac.SumacError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    def drop(self, part: str) -> None:
        """Lets the aggregator drop this part of the packets that arrive, such as ``10%``."""
        agg = program("sumac-agg")
        assert agg is not None
        command = [str(agg), "drop", "--host", str(self.base_port), "--up", part, "--down", "0"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @property
    def _state(self) -> str:
        """The path of the aggregator's state directory."""
        return str(self.path / "aggregator")

    def start_aggregator(self) -> subprocess.Popen[bytes]:
        """Starts the aggregator, with the state of the former one if there was any."""
        secret = str(self._secret)
        return self._spawn(
            "sumac-agg", "serve", "--state-dir", self._state, "--plane", "host", "--slots", "1024",
            "--share", str(self._share), "--elements", "352", "--base-port", str(self.base_port),
            "--listen", f"{self._net}.1:48600", "--data-ip", f"{self._net}.1", "--secret-file", secret,
            "--dynamic-slots", "64", "--rack-secret-file", secret, "--metrics", self.aggregator_metrics,
        )

    def start_daemon(self, rank: int, secret: pathlib.Path) -> subprocess.Popen[bytes]:
        """Starts a host's daemon and waits until it listens."""
        config = self.path / f"daemon{rank}.toml"
        config.write_text(
            f'socket = "{self.socket(rank)}"\nbackend = "udp"\naddress = "{self._net}.{11 + rank}"\n'
            f'aggregator = "{self._net}.1:48600"\nsecret_file = "{secret}"\nmetrics = "{self.metrics(rank)}"\n'
            + self._daemon_config
            + (f'[parameter_host]\nsecret_file = "{secret}"\n' if rank == 0 else "")
        )
        process = self._spawn("sumac", "daemon", "--config", str(config))
        deadline = time.monotonic() + TEST_TIMEOUT
        while True:
            try:
                sumac.Client(self.socket(rank)).close()
                return process
            except sumac.ConnectionLost:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = program(name)
        assert path is not None
        log = open(self.path / f"{name}.log", "ab")
        process = subprocess.Popen([str(path), *arguments], stdout=log, stderr=log)
        log.close()
        self._processes.append(process)
        return process

    def metrics(self, rank: int) -> str:
        """Returns the address at which a daemon's metrics are scraped."""
        return f"{self._net}.{11 + rank}:9402"

    @property
    def aggregator_metrics(self) -> str:
        """The address at which the aggregator's metrics are scraped."""
        return f"{self._net}.1:9403"

    def socket(self, rank: int) -> str:
        """Returns the path of a daemon's socket."""
        return str(self.path / f"host{rank}.sock")

    def train(
        self, job: str, work: Callable[[sumac.Client, sumac.Job, int], Any], **options: Any
    ) -> list[Any]:
        """Runs ``work`` for each rank in its own thread, and returns the results."""
        world, local = self.world * self.ranks_per_daemon, self.ranks_per_daemon
        if local > 1:
            options["local_world"] = local
        results: list[Any] = [None] * world
        errors: list[BaseException] = []

        def trainer(rank: int) -> None:
            try:
                with sumac.Client(self.socket(rank // local)) as client:
                    with client.open(job, rank, world, timeout=TEST_TIMEOUT, **options) as opened:
                        results[rank] = work(client, opened, rank)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=trainer, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TEST_TIMEOUT * 2)
        if errors:
            raise errors[0]
        return results

    def stop(self) -> None:
        """Ends all processes and removes the files."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(TEST_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()


@unittest.skipUnless(
    program("sumac") and program("sumac-agg"), "sumac and sumac-agg are not built: make build"
)
class WithLab(unittest.TestCase):
    """Tests that share a lab."""

    lab: Lab

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = Lab()
        cls.addClassCleanup(cls.lab.stop)
