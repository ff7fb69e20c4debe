"""Imports of torch and of the backend in every order, with the entry point that an installation has."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from .lab import TEST_TIMEOUT
from .test_torch import PYTHON, why_not

ORDERS = (
    "import torch", "import torch.distributed", "import sumac, torch", "import sumac.torch",
    "import sumac.torch, torch", "import torch, sumac.torch", "import torch.distributed, sumac.torch",
    "from sumac.torch import hooks", "import torch; import sumac.torch.hooks",
)


@unittest.skipIf(why_not(), why_not() or "")
class Imports(unittest.TestCase):
    def setUp(self) -> None:
        """Writes what pip installs beside the packages."""
        folder = tempfile.TemporaryDirectory(prefix="sumac-installed-")
        self.addCleanup(folder.cleanup)
        self.installed = folder.name
        found = re.search(r'entry-points."torch.backends"\]\n(.*)', (PYTHON / "pyproject.toml").read_text())
        assert found is not None
        information = pathlib.Path(folder.name) / "sumac-0.1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sumac\nVersion: 0.1.0\n")
        (information / "entry_points.txt").write_text(f"[torch.backends]\n{found[1].replace(chr(34), '')}\n")

    def test_every_order(self) -> None:
        for order in ORDERS:
            with self.subTest(order):
                # Versions before 2.5 load no entry points.
                registered = "sumac.torch" in order or self.autoloads()
                check = f"import torch; assert hasattr(torch.distributed.Backend, 'SUMAC') == {registered}"
                ran = self.run_python(f"{order}\n{check}")
                self.assertEqual(ran.returncode, 0, ran.stdout)

    def autoloads(self) -> bool:
        return self.run_python("import torch; torch._is_device_backend_autoload_enabled()").returncode == 0

    def run_python(self, program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=TEST_TIMEOUT,
            env={**os.environ, "PYTHONPATH": f"{PYTHON}:{self.installed}"},
        )


if __name__ == "__main__":
    unittest.main()
