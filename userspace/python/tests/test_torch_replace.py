"""Groups of Gloo that become Sumac's by ``SUMAC_REPLACES``."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

from .lab import TEST_TIMEOUT
from .test_torch import PYTHON, OfTwoRanks, why_not


@unittest.skipIf(why_not(), why_not() or "")
class Replaced(OfTwoRanks):
    def test_names_and_maps_of_devices(self) -> None:
        from sumac.torch.replace import replaced

        names = frozenset({"gloo"})
        for asked, expected in (
            ("gloo", "sumac"), ("Gloo", "sumac"), ("cpu:gloo", "cpu:sumac"), ("nccl", "nccl"), ("mpi", "mpi"),
            ("cpu:gloo,cuda:nccl", "cpu:sumac,cuda:nccl"), ("cuda:gloo", "cuda:sumac"), ("sumac", "sumac"),
        ):
            self.assertEqual(replaced(asked, names), expected, asked)
        for asked, expected in (
            ("nccl", "sumac"), ("cuda:nccl", "cuda:sumac"), ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:sumac"),
        ):
            self.assertEqual(replaced(asked, frozenset({"nccl"})), expected, asked)

    def test_groups_of_gloo_are_sumacs(self) -> None:
        self.check_codes(self.start("replaced_gloo", SUMAC_REPLACES="gloo"), 0, 0)

    def test_a_backend_that_cannot_be_replaced_is_named(self) -> None:
        ran = subprocess.run(
            [sys.executable, "-c", "import sumac.torch"], stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(PYTHON), "SUMAC_REPLACES": "gloo,ucc"},
            timeout=TEST_TIMEOUT,
        )
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("SUMAC_REPLACES: ucc cannot be replaced", ran.stderr)


if __name__ == "__main__":
    unittest.main()
