"""The site's table of contents, and the marks of the code blocks on its pages."""

from __future__ import annotations

import sys
import unittest

from .test_links import LINK, ROOT, prose

sys.path.insert(0, str(ROOT / "tools" / "docs"))
from blocks import FOLDER, SHELL, BadMark, blocks, blocks_of, missing_line  # noqa: E402

SUMMARY = FOLDER / "SUMMARY.md"
# Includes the changelog of the repository's top.
CHANGELOG = FOLDER / "changelog.md"
PAGES = sorted(path for path in FOLDER.rglob("*.md") if path != SUMMARY)


class TableOfContents(unittest.TestCase):
    def test_it_lists_every_page_once(self) -> None:
        listed = [FOLDER / path for path in LINK.findall(SUMMARY.read_text())]
        self.assertEqual(sorted(listed), PAGES, "docs/SUMMARY.md lists the pages of the site")

    def test_pages_link_to_no_file_outside_the_site(self) -> None:
        for page in PAGES:
            for link in LINK.findall(prose(page)):
                path = link.partition("#")[0]
                if path and "://" not in link and page != CHANGELOG:
                    with self.subTest(page=page.name, link=link):
                        self.assertTrue(
                            (page.parent / path).resolve().is_relative_to(FOLDER), "the site does not have it"
                        )

    def test_the_changelog_links_to_no_file(self) -> None:
        text = (ROOT / "CHANGELOG.md").read_text()
        self.assertEqual([link for link in LINK.findall(text) if "://" not in link], [],
                         "name the file instead: the site has it elsewhere")


class Blocks(unittest.TestCase):
    def test_every_block_has_a_language(self) -> None:
        for page in PAGES:
            for block in blocks(page):
                self.assertTrue(block.language, f"{block.place}: write ```text, or mdbook takes it for Rust")

    def test_every_block_of_commands_is_marked(self) -> None:
        for page in PAGES:
            for block in blocks(page):
                if block.language in SHELL:
                    self.assertTrue(
                        block.verb,
                        f"{block.place}: mark it as tools/docs/blocks.py says, such as <!-- not run: REASON -->",
                    )

    def test_marks_are_read(self) -> None:
        text = "<!-- file a.py on one two -->\n```python\nx\n```\n\n<!-- not run: slow -->\n```sh\ny\n```\n```text\n```\n"
        found = [(block.line, block.verb, block.file, block.hosts) for block in blocks_of("page", text)]
        self.assertEqual(
            found,
            [(2, "file", "a.py", ("one", "two")), (7, "not run", "", ("user",)), (10, "", "", ("user",))],
        )

    def test_setups_are_read(self) -> None:
        text = "<!-- setup on one: a | b -->\n<!-- run on one -->\n```sh\nc\n```\n"
        found = [(block.line, block.verb, block.text, block.hosts) for block in blocks_of("page", text)]
        self.assertEqual(found, [(1, "run", "a | b\n", ("one",)), (3, "run", "c\n", ("one",))])

    def test_a_wrong_mark_is_found(self) -> None:
        with self.assertRaisesRegex(BadMark, "page, line 2"):
            blocks_of("page", "<!-- runs -->\n```sh\ntrue\n```\n")


class Output(unittest.TestCase):
    def test_the_first_line_that_is_missing_is_returned(self) -> None:
        output = "one 1\ntwo 2 of 3\nthree\n"
        for expected, missing in (
            ("one 1\nthree", None), ("one ...\n...\nthree", None), ("two ... of ...", None),
            ("three\none 1", "one 1"),
            ("tw", "tw"), ("one 2", "one 2"),
        ):
            with self.subTest(expected):
                self.assertEqual(missing_line(expected, output), missing)


if __name__ == "__main__":
    unittest.main()
