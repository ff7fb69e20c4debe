"""The end of a process while threads of the backend are in torch's code."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

from .lab import TEST_TIMEOUT
from .test_torch import PYTHON, why_not

LINGERS = """
import time
import torch
from sumac.torch.queue import CallQueue
from sumac.torch.runtime import runtime
from sumac.torch.work import Work

large = torch.ones(700, 700)

class Lingers:
    def __del__(self):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            torch.mm(large, large)

def call():
    kept = Lingers()
    return lambda: bool(kept)

runtime()
work = Work("call", [], 60.0)
CallQueue().submit(work, call())
work.end(None)
work.wait()
"""
"""The call's thread frees what the call has kept after the call's end, when the program may be over."""


@unittest.skipIf(why_not(), why_not() or "")
class Exit(unittest.TestCase):
    def test_a_process_ends_after_the_threads_of_its_calls(self) -> None:
        ran = subprocess.run(
            [sys.executable, "-c", LINGERS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=TEST_TIMEOUT, env={**os.environ, "PYTHONPATH": str(PYTHON)},
        )
        self.assertEqual((ran.returncode, ran.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
