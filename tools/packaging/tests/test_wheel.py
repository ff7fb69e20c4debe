"""The wheel of the client in Python, built in place as pip does."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Wheel(unittest.TestCase):
    def test_it_has_its_metadata_and_leaves_nothing_in_the_tree(self) -> None:
        with tempfile.TemporaryDirectory(prefix="sumac-wheel-") as scratch:
            tree, wheels = pathlib.Path(scratch) / "tree", pathlib.Path(scratch) / "wheels"
            listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            listed.append("userspace/python")
            for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0"):
                if name and (source := ROOT / name.decode()).exists():
                    (tree / name.decode()).parent.mkdir(parents=True, exist_ok=True)
                    (tree / name.decode()).write_bytes(source.read_bytes())
            files = {path for path in tree.rglob("*")}
            subprocess.run(
                ["/usr/bin/python3", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
                 "--wheel-dir", wheels, tree / "userspace/python"],
                check=True,
            )
            self.assertEqual({path for path in tree.rglob("*")} - files, set())
            (wheel,) = wheels.glob("sumac-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                (metadata,) = [name for name in names if name.endswith("/METADATA")]
                self.assertIn("Author-email: Sumac maintainers <", archive.read(metadata).decode())
            self.assertIn("sumac/py.typed", names)
            self.assertIn("sumac/torch/__init__.py", names)


if __name__ == "__main__":
    unittest.main()
