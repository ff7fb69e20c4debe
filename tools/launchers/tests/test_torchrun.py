"""Trains with tools/launchers/torchrun/train.sh on two hosts: torchrun beside each daemon, all on this
machine's loopback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import unittest

from .hosts import LAUNCHERS, ROOT, TEST_TIMEOUT, Hosts, programs

# torchrun's settings here. Debian 12's, with Python 3.11, fails without -r and -t; a torch built without
# libuv says so otherwise.
TORCHRUN = {"PET_REDIRECTS": "1", "PET_TEE": "1", "USE_LIBUV": "0", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """Returns a TCP port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def has_torch() -> bool:
    """Returns whether this interpreter has PyTorch with torchrun."""
    command = [sys.executable, "-c", "import torch.distributed.run"]
    return subprocess.run(command, capture_output=True).returncode == 0


class Torchrun(unittest.TestCase):
    def setUp(self) -> None:
        if programs() is None:
            self.skipTest("sumac and sumac-agg are not built")
        if not has_torch():
            self.skipTest("python3-torch is not installed")
        self.hosts = Hosts("")
        self.addCleanup(self.hosts.stop)

    def test_the_same_line_on_both_hosts_trains_one_model(self) -> None:
        environment = {
            **os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "userspace/python"),
            "NODES": "2",
            "RENDEZVOUS": f"127.0.0.1:{free_port()}", "SUMAC_JOB": "torchrun",
            "PET_LOG_DIR": str(self.hosts.path / "logs"), **TORCHRUN,
        }
        command = [LAUNCHERS / "torchrun/train.sh", LAUNCHERS / "torchrun/train.py"]
        hosts = [
            subprocess.Popen(
                command,
                env={**environment, "SUMAC_SOCKET": str(self.hosts.socket(node))},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node in self.hosts.NODES
        ]
        try:
            outputs = [host.communicate(timeout=2 * TEST_TIMEOUT)[0] for host in hosts]
        finally:
            for host in hosts:
                host.kill()
                host.wait()
        self.assertEqual([host.returncode for host in hosts], [0, 0], "".join(outputs))
        lines = re.findall(r"rank (\d) of 2 on \S+: loss (\S+), after 50 steps (\S+)", "".join(outputs))
        self.assertEqual(sorted(rank for rank, _, _ in lines), ["0", "1"], "".join(outputs))
        self.assertEqual(len({(first, last) for _, first, last in lines}), 1)
        self.assertLess(float(lines[0][2]), float(lines[0][1]) / 2)

    def test_without_the_jobs_name_it_says_what_is_missing(self) -> None:
        command = [LAUNCHERS / "torchrun/train.sh", "train.py"]
        done = subprocess.run(command, env={"PATH": os.environ["PATH"], "NODES": "2", "RENDEZVOUS": "x:1"},
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("SUMAC_JOB", done.stderr)


if __name__ == "__main__":
    unittest.main()
