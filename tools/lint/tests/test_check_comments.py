"""Tests of the language check."""

from __future__ import annotations

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import check_comments
from check_comments import Findings, check_source


def findings(source: str, name: str = "lib.rs") -> Findings:
    result = Findings()
    check_source(name, source, result)
    return result


class DocComments(unittest.TestCase):
    def test_a_block_counts_once_by_its_first_line(self) -> None:
        result = findings(
            "/// Sends a probe.\n/// What follows is the second line.\nfn probe() {}\n/// The rank.\nrank: u16,\n"
        )
        self.assertEqual(result.doc_comments, 2)
        self.assertEqual(result.questions, [])

    def test_each_question_word_is_found_with_its_line(self) -> None:
        for word in check_comments.QUESTION_WORDS:
            with self.subTest(word):
                result = findings(f"fn f() {{}}\n    /// {word} is here.\n")
                self.assertEqual(result.questions, [f"lib.rs:2: /// {word} is here."])

    def test_a_word_that_only_begins_alike_is_none(self) -> None:
        for line in ("/// Whole frames.", "/// However late.", "/// Thatched.", "/// Whatever arrives."):
            with self.subTest(line):
                self.assertEqual(findings(line).questions, [])

    def test_module_comments_count(self) -> None:
        self.assertEqual(
            findings("//! What a worker keeps.\n\nuse std::io;\n").questions,
            ["lib.rs:1: //! What a worker keeps."],
        )

    def test_other_comments_do_not_count(self) -> None:
        self.assertEqual(findings("// What follows.\n//// What a rule.\nlet x = 1; /// no\n").doc_comments, 0)

    def test_docstrings_count(self) -> None:
        source = (
            'def f() -> None:\n    """Which one it is.\n\n    What follows.\n    """\n    return """What"""\n'
        )
        result = findings(source, "f.py")
        self.assertEqual(result.questions, ['f.py:2: """Which one it is.'])
        self.assertEqual(findings(source).doc_comments, 0)

    def test_two_blocks_with_code_between_are_two(self) -> None:
        self.assertEqual(findings("/// One.\nA,\n/// Two.\nB,\n").doc_comments, 2)

    def test_an_emphasised_question_word_is_found(self) -> None:
        self.assertEqual(len(findings("/// **What** it is.").questions), 1)


class BannedNames(unittest.TestCase):
    def test_type_definitions_are_found(self) -> None:
        for definition in (
            "struct Errand {", "pub struct Errand;", "pub(crate) enum Errand {",
            "pub(in crate::job) struct Errand(u8);",
            "trait Errand: Send {", "pub type Errand = u32;", "    pub unsafe trait Errand {}",
            "union Errand {",
        ):
            with self.subTest(definition):
                self.assertEqual(findings(definition).banned, ["lib.rs:1: type Errand: use Operation"])

    def test_uses_and_longer_names_are_not(self) -> None:
        for line in ("let errand = Errand::new();", "pub struct ErrandQueue;", "use a::Port;",
                     "enum Command { Port }", "// struct Errand"):
            with self.subTest(line):
                self.assertEqual(findings(line).banned, [])

    def test_constants_named_after_patience_are(self) -> None:
        for line in ("const PATIENCE: Duration = X;", "pub const JOIN_PATIENCE: u64 = 1;",
                     "static PATIENCE: u8 = 1;"):
            with self.subTest(line):
                self.assertEqual(len(findings(line).banned), 1)
        self.assertEqual(findings("const JOIN_TIMEOUT: u64 = 1;").banned, [])


class Shrinking(unittest.TestCase):
    def test_no_type_name_is_shared_by_further_files(self) -> None:
        found, known = check_comments.shared_names(), check_comments.known()["type_names"]
        more = {name: count for name, count in found.items() if count > known.get(name, 0)}
        self.assertEqual(more, {}, "name the types after their owners")
        self.assertEqual(set(known) - set(found), set(), "tools/lint/check_comments.py --write")

    def test_no_further_comment_lets_things_speak(self) -> None:
        found = check_comments.persons(Path(__file__).resolve().parents[3])
        self.assertLessEqual(found, check_comments.known()["persons"], "returns, reports, sends, receives")

    def test_comments_are_told_from_code(self) -> None:
        source = '/// Gives up.\n    // It says so.\nlet told = "says";\n//! Each hears it.\n'
        self.assertEqual(len(check_comments.PERSONS.findall(source)), 2)


class Outcome(unittest.TestCase):
    def test_one_question_word_fails(self) -> None:
        good = "/// The rank.\na,\n"
        self.assertTrue(findings(good).passed)
        self.assertFalse(findings(good * 99 + "/// Who.\nb,\n").passed)

    def test_one_banned_name_fails(self) -> None:
        self.assertFalse(findings("/// The rank.\nstruct Seat;\n").passed)


class CommandLine(unittest.TestCase):
    def run_on(self, files: dict[str, str], *more: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                return check_comments.main([folder, *more]), output.getvalue()

    def test_it_prints_files_relative_to_the_folder_and_fails(self) -> None:
        code, output = self.run_on(
            {"wire/src/lib.rs": "//! What.\n", "target/debug/gen.rs": "/// Who.\n", ".git/x.rs": "/// Who.\n"}
        )
        self.assertEqual(code, 1)
        self.assertIn("wire/src/lib.rs:1: //! What.", output)
        self.assertIn("1 of 1 doc comments begin", output)

    def test_clean_sources_pass(self) -> None:
        code, output = self.run_on({"lib.rs": "//! The packet.\n", "notes.md": "/// What\n"})
        self.assertEqual(code, 0, output)

    def test_the_workspace_passes(self) -> None:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = check_comments.main([str(Path(__file__).resolve().parents[3])])
        self.assertEqual(code, 0, output.getvalue())

    def test_a_folder_without_sources_and_further_arguments_are_usage_errors(self) -> None:
        self.assertEqual(self.run_on({})[0], 2)
        self.assertEqual(self.run_on({"lib.rs": "/// A.\n"}, "more")[0], 2)


if __name__ == "__main__":
    unittest.main()
