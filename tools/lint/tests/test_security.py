"""The tests that docs/security.md names exist, in the files that it names."""

from __future__ import annotations

import re
import unittest

from .test_links import ROOT

DOCUMENT = (ROOT / "docs" / "security.md").read_text()


class NamedTests(unittest.TestCase):
    def test_each_named_test_exists(self) -> None:
        paths = [path for path in ROOT.glob("**/*.rs") if "target" not in path.relative_to(ROOT).parts]
        tests = "\n".join(path.read_text() for path in paths)
        named = {name for name in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`", DOCUMENT)}
        named -= {"no_new_privs"}
        self.assertGreater(len(named), 20)
        for name in sorted(named):
            self.assertTrue(f"fn {name}(" in tests, name)

    def test_each_named_file_exists(self) -> None:
        for path in set(re.findall(r"[\w/-]+\.rs", DOCUMENT)):
            self.assertTrue((ROOT / path).exists(), path)


if __name__ == "__main__":
    unittest.main()
