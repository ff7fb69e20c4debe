"""The relative links and anchors of the Markdown files."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Returns the project's Markdown files."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md"),
             *ROOT.glob("*/*/README.md")]
    return [path for path in found if "target" not in path.relative_to(ROOT).parts]


def prose(page: Path) -> str:
    """Returns a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub derives from a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


class Links(unittest.TestCase):
    def test_targets_and_anchors_exist(self) -> None:
        checked = 0
        for page in pages():
            for link in LINK.findall(prose(page)):
                if "://" in link:
                    continue
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                with self.subTest(page=str(page.relative_to(ROOT)), link=link):
                    self.assertTrue(target.exists(), "no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(target))
                checked += 1
        self.assertGreater(checked, 50)


if __name__ == "__main__":
    unittest.main()
