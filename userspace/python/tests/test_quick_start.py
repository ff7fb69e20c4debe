"""The quick start of docs/operations.md, command by command, as a user without privileges."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from .lab import ROOT, TEST_TIMEOUT, program

NOBODY = 65534


def section() -> str:
    """Returns the quick start's text."""
    text = (ROOT / "docs" / "operations.md").read_text()
    return text.split("## Quick start without root\n")[1].split("\n## ")[0]


def block(language: str) -> str:
    """Returns the code block in this language."""
    return re.findall(f"```{language}\n(.*?)```", section(), re.DOTALL)[0]


@unittest.skipUnless(program("sumac") and program("sumac-agg"), "sumac and sumac-agg are not built: make build")
class QuickStart(unittest.TestCase):
    def test_its_commands_sum_without_privileges(self) -> None:
        with tempfile.TemporaryDirectory(prefix="sumac-quick-start-", dir="/tmp") as name:
            folder = pathlib.Path(name)
            self._prepare(folder)
            # Other labs of this machine have 127.0.0.1 and its ports.
            number = os.getpid()
            net = f"127.{1 + number // 256 % 250}.{number % 256}."
            (folder / "worker.py").write_text(block("python"))
            script = "set -euo pipefail\n" + block("sh").replace("127.0.0.", net)
            # Debian's Python has numpy; one below /root is closed to other users.
            environment = {
                "PATH": f"{folder}/bin:/usr/bin:/bin", "PYTHONPATH": str(folder / "client"), "HOME": str(folder),
            }
            command = ["bash", "-c", script]
            if os.geteuid() == 0:
                for path in (folder, folder / "worker.py"):
                    os.chown(path, NOBODY, NOBODY)
                command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
            ran = subprocess.run(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=TEST_TIMEOUT, check=False,
            )
            self.assertEqual(ran.returncode, 0, ran.stdout)
            for rank in (0, 1):
                self.assertIn(f"rank {rank}: 3.0", ran.stdout)
            self.assertIn("backend  ", ran.stdout)

    @staticmethod
    def _prepare(folder: pathlib.Path) -> None:
        """Copies the programs and the client to where every user may run them."""
        (folder / "bin").mkdir()
        for name in ("sumac", "sumac-agg"):
            path = program(name)
            assert path is not None
            shutil.copy(path, folder / "bin" / name)
        shutil.copytree(ROOT / "userspace" / "python" / "sumac", folder / "client" / "sumac")


if __name__ == "__main__":
    unittest.main()
