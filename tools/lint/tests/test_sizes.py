"""Files, lines and the walk have limits. Exceptions may only shrink."""

from __future__ import annotations

import tomllib
import unittest

import sizes


class Sizes(unittest.TestCase):
    def test_tables_code_and_links_are_no_text(self) -> None:
        wide = "x" * 120
        text = f"{wide}\n| {wide} |\n```\n{wide}\n```\n[{wide}](a.md)\n"
        self.assertEqual(list(sizes.wide_lines("a.md", text)), [1])
        self.assertEqual(list(sizes.wide_lines("a.rs", f"// {wide}\nlet x = 1;\n")), [1])


class Workspace(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.found = sizes.measure()
        cls.known = tomllib.loads(sizes.KNOWN.read_text())

    def test_no_further_long_file_and_no_exception_left_over(self) -> None:
        self.assertEqual(
            set(self.found["long_files"]) - set(self.known["long_files"]), set(), "divide these files"
        )
        self.assertEqual(set(self.known["long_files"]) - set(self.found["long_files"]), set(),
                         "tools/lint/sizes.py --write")

    def test_no_further_wide_lines(self) -> None:
        for language, count in self.found["wide_lines"].items():
            self.assertLessEqual(
                count, self.known["wide_lines"][language], f"{language}: tools/lint/sizes.py --lines"
            )

    def test_the_walk_names_few_files(self) -> None:
        files = sizes.walk((sizes.ROOT / "docs" / "architecture.md").read_text())
        self.assertTrue(10 < len(files) <= sizes.WALK_FILES, files)


if __name__ == "__main__":
    unittest.main()
