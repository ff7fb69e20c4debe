"""The communication hooks of ``sumac.torch.hooks`` over real daemons, beside DDP's default over Gloo."""

from __future__ import annotations

import unittest

from .test_torch import Ranks, add_cases, why_not


@unittest.skipIf(why_not(), why_not() or "")
class Hooks(Ranks):
    """Each option, alone and with others."""

    cases = "tests.torch_hook_cases"

    def run_lossy(self, case: str) -> None:
        """Runs a case while a tenth of the packets is lost."""
        self.lab.drop("10%")
        try:
            self.run_case(case)
        finally:
            self.lab.drop("0")

    def test_feedback(self) -> None:
        self.run_lossy("feedback")

    def test_feedback_of_bfloat16(self) -> None:
        self.run_lossy("feedback_of_bfloat16")


add_cases(Hooks, "plain", "reductions", "bfloat16", "int16", "composed", "wrapped", "priorities",
          "not_finite", "errors")


if __name__ == "__main__":
    unittest.main()
