"""The site that mdbook renders: its links, and its blocks of Rust. Skipped where mdbook is not installed."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import tempfile
import unittest
from html.parser import HTMLParser
from urllib.parse import unquote

from blocks import FOLDER

# Written by tools/setup.sh --book.
SCRIPT = FOLDER / "mermaid.min.js"


class Page(HTMLParser):
    """The links and the anchors of a rendered page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)


@unittest.skipUnless(
    shutil.which("mdbook") and SCRIPT.exists(),
    "mdbook or its Mermaid is not installed: tools/setup.sh --book",
)
class Site(unittest.TestCase):
    def test_no_link_is_dead_and_diagrams_are_drawn(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            built = subprocess.run(["mdbook", "build", "--dest-dir", name, str(FOLDER)],
                                   stderr=subprocess.PIPE, text=True, check=True)
            self.assertNotRegex(built.stderr, "WARN|ERROR")
            pages = {path.resolve(): Page(path.read_text()) for path in pathlib.Path(name).rglob("*.html")}
            self.assertGreater(len(pages), 15)
            diagrams = sum(path.read_text().count("```mermaid") for path in FOLDER.glob("*.md"))
            self.assertEqual(
                sum(
                    path.read_text().count('<pre class="mermaid">')
                    for path in pages
                    if path.name != "print.html"
                ),
                diagrams,
            )
            for path, page in pages.items():
                for link in page.links:
                    # The page for unknown addresses has links from the site's root.
                    if (
                        "://" not in link
                        and not link.startswith(("data:", "mailto:"))
                        and path.name != "404.html"
                    ):
                        self._check(path, link, pages)

    def _check(self, path: pathlib.Path, link: str, pages: dict[pathlib.Path, Page]) -> None:
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        with self.subTest(page=path.name, link=link):
            self.assertTrue(target.exists(), "no such file")
            if anchor and target in pages:
                self.assertIn(anchor, pages[target].anchors)

    @unittest.skipUnless(shutil.which("rustdoc"), "rustdoc is not installed")
    def test_blocks_of_rust_compile(self) -> None:
        ran = subprocess.run(["mdbook", "test", str(FOLDER)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout)


if __name__ == "__main__":
    unittest.main()
