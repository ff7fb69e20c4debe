"""The control plane reads the compiled programs for Tofino: their sizes and the pipes of the slots."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import unittest

import build
from toolchain import BUILT, Chip, missing

CONTROL = pathlib.Path(os.environ.get("SUMAC_BIN_DIR") or build.ROOT / "target" / "release") / "sumac-agg"
PORT = """
[[ports]]
number = {port}
ip = "10.77.1.1"
mac = "02:00:00:00:01:01"
hosts = [{{ ip = "10.77.1.2", mac = "02:00:00:00:01:02" }}]
"""


@unittest.skipIf(missing(), missing())
@unittest.skipUnless(CONTROL.exists(), f"{CONTROL} is not built")
class ControlPlane(unittest.TestCase):
    def refusal(self, source: pathlib.Path, chip: Chip, switch: str) -> str:
        """Returns why a control plane of the program does not start: where there is no switch it never
        does."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "switch.toml").write_text(switch, encoding="utf-8")
            command = [CONTROL, "serve", "--plane", "bfrt", "--pipeline",
                       BUILT / chip.target / source.stem / f"{source.stem}.conf"]
            command += ["--switch", folder / "switch.toml", "--switch-address", "127.0.0.1:1"]
            command += ["--listen", "127.0.0.1:0", "--state-dir", folder]
            ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            return ended.stderr

    def test_its_sizes_are_read(self) -> None:
        build.ensure_built()
        for source, chip in build.tested():
            with self.subTest(f"{source.stem} for {chip.title}"):
                static, dynamic = "dynamic" not in source.stem, "static" not in source.stem
                slots, most = (2048, 256) if chip.target == "tofino2" else (4096, 64)
                for size, compiled in (("static_slots", slots * static), ("dynamic_slots", 2048 * dynamic),
                                       ("shards", 2)):
                    refusal = self.refusal(source, chip, f"[program]\n{size} = 1{PORT.format(port=8)}")
                    self.assertIn(f"the program was compiled with {compiled}", refusal)
                refusal = self.refusal(source, chip, f"[program]\nelements = {most + 1}{PORT.format(port=8)}")
                self.assertIn(f"the program adds 1 to {most} of a packet", refusal)
                self.assertIn("pipe 1", self.refusal(source, chip, PORT.format(port=132)))
                self.assertIn("127.0.0.1:1", self.refusal(source, chip, PORT.format(port=8)))


if __name__ == "__main__":
    unittest.main()
