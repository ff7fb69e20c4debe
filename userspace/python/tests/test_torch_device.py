"""The backend ``sumac`` with tensors on a device: the tests' own, whose memory the host cannot touch."""

from __future__ import annotations

import os
import unittest

from .test_torch import OfTwoRanks, Ranks, add_cases
from .test_torch import why_not as lacks_programs


def why_not() -> str | None:
    """Returns the reason that these tests cannot run."""
    if (why := lacks_programs()) is not None:
        return why
    from . import device

    return device.why_not()


WHY_NOT = why_not()
if WHY_NOT and os.environ.get("REQUIRE_PRIVILEGED") == "1":
    raise RuntimeError(WHY_NOT)


def setUpModule() -> None:
    """Builds the device, which takes longer than ranks may take to answer where the machine is busy."""
    if WHY_NOT is None:
        from . import device

        device.build()


@unittest.skipIf(WHY_NOT, WHY_NOT or "")
class OnDevice(Ranks):
    """The calls of torch.distributed, three ranks with a daemon each."""

    cases = "tests.torch_device_cases"


add_cases(
    OnDevice,
    "reductions", "bits", "transfers", "pieces", "order", "futures", "mixed", "refusals", "hooks", "ddp",
    "destroyed", "busy_streams", "behind", "strides_of_one", "released", "alone_on_the_device",
)


@unittest.skipIf(WHY_NOT, WHY_NOT or "")
class Broken(OfTwoRanks):
    """A device that falls off."""

    def test_the_call_of_a_device_that_falls_off_fails_and_others_name_its_rank(self) -> None:
        from .device import IS_GPU

        if IS_GPU:
            self.skipTest("a GPU is not broken on purpose")
        self.check_codes(self.start("broken_device"), 0, 0)

    def test_a_device_that_is_unavailable_from_the_start_is_named_too(self) -> None:
        self.check_codes(self.start("unavailable_device"), 0, 0)


if __name__ == "__main__":
    unittest.main()
