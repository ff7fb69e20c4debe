"""The script of `make quickstart`, on a loopback of its own."""

from __future__ import annotations

import subprocess
import unittest

from programs import ROOT, missing, program
from user import OWN_LOOPBACK

from .test_pages import has_root


@unittest.skipIf(missing(), missing())
class Quickstart(unittest.TestCase):
    @unittest.skipUnless(has_root(), "a loopback of its own needs root")
    def test_both_ranks_have_the_sum(self) -> None:
        built = program("sumac")
        assert built is not None
        ran = subprocess.run(
            [*OWN_LOOPBACK, "tools/quickstart.sh", str(built.parent)], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout)
        for rank in (0, 1):
            self.assertRegex(ran.stdout, rf"rank {rank} contributed {rank + 1}\.0 and has \[3\.\] everywhere")
