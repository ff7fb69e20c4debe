"""The pages of docs/reference/ are those that the code makes."""

from __future__ import annotations

import unittest

import reference
from programs import missing


@unittest.skipIf(missing(), missing())
class Reference(unittest.TestCase):
    def test_no_page_differs_from_the_code(self) -> None:
        made = reference.pages()
        self.assertEqual(sorted(made), sorted(page.name for page in reference.FOLDER.iterdir()))
        for name, text in made.items():
            with self.subTest(name):
                self.assertEqual((reference.FOLDER / name).read_text(), text, "make reference")

    def test_every_command_is_there(self) -> None:
        page = reference.commands("sumac")
        for command in ("sumac daemon", "sumac stats", "sumac qos show"):
            self.assertRegex(page, rf"(?m)^#+ {command}$")
        self.assertIn("--config", page)


if __name__ == "__main__":
    unittest.main()
