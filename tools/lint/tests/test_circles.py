"""No circles of imports but those that are still to be broken."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import circles


def crate(files: dict[str, str]) -> list[list[tuple[str, str, str]]]:
    """Returns the circles of a crate of these files."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = circles.circles(circles.edges(circles.load(root / "lib.rs", None, root)))
        return [
            [(str(a.relative_to(root)), name, str(b.relative_to(root))) for a, name, b in circle]
            for circle in found
        ]


class Crates(unittest.TestCase):
    def test_two_siblings_that_import_each_other_are_one(self) -> None:
        found = crate({"lib.rs": "mod a;\nmod b;\n", "a.rs": "use crate::b::B;\npub struct A;\n",
                       "b.rs": "pub struct B;\nfn f() { super::a::A; }\n"})
        self.assertEqual(found, [[("a.rs", "crate::b::B", "b.rs"), ("b.rs", "super::a::A", "a.rs")]])

    def test_a_re_export_leads_to_the_definition(self) -> None:
        files = {"lib.rs": "mod a;\npub use a::inner::A;\nmod b;\n", "a/mod.rs": "pub mod inner;\n",
                 "a/inner.rs": "use crate::b::B;\npub struct A;\n"}
        self.assertEqual(len(crate(files | {"b.rs": "use crate::A;\npub struct B;\n"})[0]), 2)
        self.assertEqual(crate(files | {"b.rs": "pub struct B;\n"}), [])

    def test_a_module_that_only_re_exports_its_child_has_no_edge(self) -> None:
        child = "use super::Limit;\npub struct A(Limit);\n"
        self.assertEqual(crate({"lib.rs": "mod a;\npub use a::A;\npub struct Limit;\n", "a.rs": child}), [])
        self.assertEqual(len(crate({"lib.rs": "mod a;\npub use a::A;\npub struct Limit;\nfn f(_: A) {}\n",
                                    "a.rs": child})), 1)

    def test_groups_aliases_and_globs_are_followed(self) -> None:
        found = crate({"lib.rs": "mod a;\nmod b;\n", "a.rs": "use crate::{b::{B as C}};\npub struct A(C);\n",
                       "b.rs": "use super::a::*;\npub struct B(A);\n"})
        self.assertEqual(len(found), 1)

    def test_test_modules_and_comments_do_not_count(self) -> None:
        tests = "pub struct B;\n// crate::a::A\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"
        self.assertEqual(
            crate({"lib.rs": "mod a;\nmod b;\n", "a.rs": "use crate::b::B;\npub struct A;\n", "b.rs": tests}),
            [],
        )


class Workspace(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.found = {circles.line_of(circle) for circle in circles.workspace()}

    def test_each_circle_is_in_the_list_and_each_of_the_list_is_one(self) -> None:
        self.assertEqual(self.found - circles.known(), set(), "break these circles")
        self.assertEqual(circles.known() - self.found, set(), "tools/lint/circles.py --write")

    def test_the_host_core_has_none(self) -> None:
        self.assertEqual([line for line in self.found if "userspace/host/" in line], [])


if __name__ == "__main__":
    unittest.main()
