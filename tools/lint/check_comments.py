#!/usr/bin/python3
"""Checks the language of the workspace's Rust and Python sources:

  tools/lint/check_comments.py [FOLDER]
  tools/lint/check_comments.py --write      lowers the numbers of names.toml to those of today

1. No doc comment and no docstring begins with a question word or a pronoun (QUESTION_WORDS).
2. No type has a name that the field does not use (BANNED_TYPES), and no constant is called after PATIENCE.
3. No type name is defined by more than SHARED_NAMES files of the product, but for those of names.toml.
4. Comments with "gives", "tells", "says", "told" or "hears" (PERSONS) are no more than names.toml counts.

Prints each finding as `file:line: text`, then the totals. Exits with 1 when a check fails, with 2 on a usage
error.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator

import layers

# First words of clauses that stand for a noun. A doc comment begins with the noun or with a verb.
QUESTION_WORDS = (
    "What", "Who", "Whom", "Whose", "Which", "Where", "How", "Why", "Nobody", "Nothing", "Those", "That",
)

# Type names without a meaning in the field, and the terms that replace them. docs/glossary.md defines the
# terms.
BANNED_TYPES = {
    "Bell": "CompletionEvent",
    "Books": "RackAgent",
    "Carrier": "Backend",
    "Claim": "a report of a mismatch",
    "Convict": "a diagnosis of a mismatch",
    "Desk": "CommandQueue",
    "Dispute": "a mismatch",
    "Door": "Endpoint, AttachHandle or Listener",
    "Doubt": "a mismatch",
    "Duty": "RackAgent",
    "Ears": "Receivers",
    "Errand": "Operation",
    "Gaps": "InstallState",
    "Gate": "JobTable or Authenticator",
    "Hold": "InstallState",
    "Hub": "EventLoop",
    "Known": "InstallState",
    "LaterResults": "OutOfOrderResults",
    "Life": "JobTask",
    "Met": "CollisionFeedback",
    "Noise": "RateLimiter",
    "Numbers": "ChunkCodec",
    "Given": "SizeOptions",
    "Order": "OperationOrder, Command or Comparison",
    "Overseer": "Monitor or Supervisor",
    "Past": "CompletedPrefix",
    "Places": "SlotMap",
    "Pooled": "StaticMode",
    "Port": "FrameIo, XskQueue, UdpPort or Interface",
    "Quiet": "RateLimiter",
    "Rehearsal": "Replay",
    "Renewal": "Reconnect or Failover",
    "Restore": "Reconnect or Failover",
    "Seal": "Authenticator",
    "Seat": "Member",
    "Share": "Fragment",
    "Silence": "ProbeTimeout",
    "Stand": "ResumePoint",
    "Stranger": "an unauthenticated connection",
    "Told": "the message or the state",
    "Vacancy": "a vacated rank",
    "Verdict": "Diagnosis",
    "Way": "Path",
    "What": "OperationDescriptor",
}

# What does not pass yet. The numbers only shrink.
KNOWN = Path(__file__).with_name("names.toml")
# Files that may define types of one name, each for itself. The aim is 1.
SHARED_NAMES = 3
# Of clap: each command has its own.
COMMAND_TYPES = {"Args"}
PERSONS = re.compile(r"^\s*//.*\b(?:gives|tells|says|told|hears)\b", re.MULTILINE)

DOCSTRING = re.compile(r'^\s*r?"""(?P<text>.*)$')
DOC_LINE = re.compile(r"^\s*//(?:/(?!/)|!)\s?(?P<text>.*)$")
QUESTION = re.compile(rf"^(?:{'|'.join(QUESTION_WORDS)})\b")
TYPE = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(?:struct|enum|union|trait|type)\s+(?P<name>\w+)"
)
PATIENCE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:const|static)\s+(?P<name>(?:\w+_)?PATIENCE)\b")


@dataclass
class Findings:
    """The result of a check of some sources."""

    doc_comments: int = 0
    questions: list[str] = field(default_factory=list)
    banned: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.banned and not self.questions


def check_source(name: str, source: str, findings: Findings) -> None:
    """Adds the findings of one file."""
    in_doc_comment = False
    doc_line = DOCSTRING if name.endswith(".py") else DOC_LINE
    for number, line in enumerate(source.splitlines(), start=1):
        doc = doc_line.match(line)
        if doc and not in_doc_comment:
            findings.doc_comments += 1
            if QUESTION.match(doc["text"].lstrip("`*_ ")):
                findings.questions.append(f"{name}:{number}: {line.strip()}")
        in_doc_comment = doc is not None
        if defined := TYPE.match(line):
            if defined["name"] in BANNED_TYPES:
                findings.banned.append(
                    f"{name}:{number}: type {defined['name']}: use {BANNED_TYPES[defined['name']]}"
                )
        elif constant := PATIENCE.match(line):
            findings.banned.append(f"{name}:{number}: constant {constant['name']}: name the timeout")


def sources(root: Path) -> Iterator[Path]:
    """Yields the Rust and Python files below `root`, without build output and hidden folders."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "target" and not name.startswith("."))
        for name in sorted(files):
            if name.endswith((".rs", ".py")):
                yield Path(folder) / name


def check(root: Path) -> Findings:
    """Checks all Rust and Python files below `root`."""
    findings = Findings()
    for path in sources(root):
        check_source(str(path.relative_to(root)), path.read_text(encoding="utf-8"), findings)
    return findings


def shared_names() -> dict[str, int]:
    """Returns the type names that more than SHARED_NAMES files of the product define, with their number."""
    found = layers.workspace()
    crates = [folder for folders in found.values() for folder in folders]
    files: dict[str, set[Path]] = {}
    for path in (path for folder in found["product"] for path in layers.sources(folder, crates)):
        if "tests" not in path.relative_to(layers.ROOT).parts and path.name != "tests.rs":
            for line in path.read_text(encoding="utf-8").split("\n#[cfg(test)]")[0].splitlines():
                defined = TYPE.match(line)
                if defined and not line.startswith(" "):
                    files.setdefault(defined["name"], set()).add(path)
    return {
        name: len(paths)
        for name, paths in sorted(files.items())
        if len(paths) > SHARED_NAMES and name not in COMMAND_TYPES
    }


def persons(root: Path) -> int:
    """Returns the number of Rust comments in which things give, tell, say or hear."""
    texts = (path.read_text(encoding="utf-8") for path in sources(root) if path.suffix == ".rs")
    return sum(len(PERSONS.findall(text)) for text in texts)


def known() -> dict:
    """Returns the exceptions."""
    return tomllib.loads(KNOWN.read_text(encoding="utf-8"))


def write_known() -> None:
    """Lowers the numbers of the exceptions, and removes those that are no longer needed."""
    old, names = known(), shared_names()
    kept = {name: min(count, names[name]) for name, count in old["type_names"].items() if name in names}
    head = [line for line in KNOWN.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    lines = [*head, f"persons = {min(old['persons'], persons(layers.ROOT))}", "[type_names]"]
    lines += [f"{name} = {count}" for name, count in kept.items()]
    KNOWN.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    if arguments == ["--write"]:
        write_known()
        return 0
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[2]
    findings = check(root)
    if findings.doc_comments == 0:
        print(f"no doc comments below {root}", file=sys.stderr)
        return 2
    for line in findings.questions + findings.banned:
        print(line)
    print(
        f"{len(findings.questions)} of {findings.doc_comments} doc comments begin with a question word. "
        f"{len(findings.banned)} banned names."
    )
    return 0 if findings.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
