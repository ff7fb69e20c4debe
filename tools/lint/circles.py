#!/usr/bin/python3
"""Finds import circles between files of one crate, or of one folder of Python tools:

  tools/lint/circles.py           prints each circle with its edges, and exits with 1 if one is not in
  circles.txt tools/lint/circles.py --write   writes circles.txt when no file joins the circles that are known

An edge leads from a file to the file that defines a name it imports, or writes out as a path. Re-exports are
followed to the definition. A module that only declares or re-exports its child has no edge to it. Test
modules are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Optional

import layers

ROOT = layers.ROOT
# Circles that are still to be broken: the files of each in one line. A test fails when one is new, and when
# one is gone.
LIST = Path(__file__).with_name("circles.txt")
PYTHON = ("tools", "userspace/python")

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|b?r#"(?:.|\n)*?"#|b?"(?:\\.|[^"\\])*"', re.S)
TEST_MODULE = re.compile(
    r"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*(?:pub(?:\([^)]*\))? )?mod \w+(?:;| \{.*?^\})", re.M | re.S
)
MODULE = re.compile(
    r'(?:^[ \t]*#\[path = "(?P<path>[^"]+)"\]\n)?^[ \t]*(?:pub(?:\([^)]*\))? )?mod (?P<name>\w+);', re.M
)
USE = re.compile(r"^[ \t]*(?P<visible>pub(?:\([^)]*\))? )?use (?P<tree>[^;]+);", re.M)
DEFINITION = re.compile(
    r"^(?:pub(?:\([^)]*\))? )?(?:default |const |async |unsafe |extern \"[^\"]*\" )*"
    r"(?:fn|struct|enum|union|trait|type|const|static(?: mut)?|macro_rules!) (?P<name>\w+)", re.M)
PATH = re.compile(r"(?<![\w:])(?:\w+::)+\w+")


@dataclass
class Module:
    """A Rust module that is a file."""

    file: Path
    parent: Optional[Module]
    code: str
    children: dict[str, Module] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    imports: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    globs: list[list[str]] = field(default_factory=list)
    body: str = ""

    @property
    def root(self) -> Module:
        return self.parent.root if self.parent else self


def leaves(tree: str) -> Iterator[tuple[list[str], str]]:
    """Yields the path and the local name of each leaf of a use tree."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, name = (part.strip() for part in tree.partition(" as "))
        segments = [segment.strip() for segment in path.split("::") if segment.strip()]
        if len(segments) > 1 and segments[-1] == "self":
            segments.pop()
        if segments:
            yield segments, name or segments[-1]
        return
    prefix, depth, begin = head, 0, 0
    inner = rest[: rest.rindex("}")]
    for at, char in enumerate(inner + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if inner[begin:at].strip():
                yield from leaves(prefix + inner[begin:at].strip())
            begin = at + 1


def load(file: Path, parent: Optional[Module], folder: Path) -> Module:
    """Reads a module and those it declares. `folder` holds the files of its children."""
    source = file.read_text(encoding="utf-8")
    module = Module(file, parent, TEST_MODULE.sub("", re.sub(r"//[^\n]*", "", source)))
    for child in MODULE.finditer(module.code):
        name = child["name"]
        if child["path"]:
            found = [file.parent / child["path"]]
        else:
            found = [folder / f"{name}.rs", folder / name / "mod.rs"]
        for path in found:
            if path.exists():
                inner = path.parent if path.name == "mod.rs" else folder / name
                module.children[name] = load(path, module, inner)
    code = NOISE.sub(" ", module.code)
    module.defined = {match["name"] for match in DEFINITION.finditer(code)}
    for use in USE.finditer(code):
        for segments, name in leaves(use["tree"]):
            if segments[-1] == "*":
                module.globs.append(segments[:-1])
            elif name != "_":
                module.imports[name] = segments
                if use["visible"]:
                    module.exported.add(name)
    module.body = MODULE.sub(" ", USE.sub(" ", code))
    return module


def resolve(module: Module, segments: list[str], seen: frozenset = frozenset()) -> Optional[Module]:
    """Returns the module that defines the item at a path, if the path leads to an item of this crate."""
    at: Module = module
    for index, segment in enumerate(segments):
        if segment == "crate" and index == 0:
            at = module.root
        elif segment == "super" and at.parent:
            at = at.parent
        elif segment == "self":
            continue
        elif segment in at.children:
            at = at.children[segment]
        elif segment in at.defined:
            return at
        elif segment in at.imports and (id(at), segment) not in seen:
            return resolve(at, at.imports[segment] + segments[index + 1 :], seen | {(id(at), segment)})
        else:
            for glob in at.globs:
                key = (id(at), "*", *glob, segment)
                if key not in seen and (found := resolve(at, glob + segments[index:], seen | {key})):
                    return found
            return None
    return None


def edges(module: Module) -> Iterator[tuple[Path, str, Path]]:
    """Yields from, name and to, for the module and all below it."""
    words = set(re.findall(r"\w+", module.body))
    paths = [match[0].split("::") for match in PATH.finditer(module.body)]
    paths += [path for name, path in module.imports.items() if name not in module.exported or name in words]
    for glob in module.globs:
        paths += [glob + [name] for name in words]
    for path in paths:
        found = resolve(module, path)
        if found and found is not module:
            yield module.file, "::".join(path), found.file
    for child in module.children.values():
        yield from edges(child)


def rust(root: Path = ROOT) -> Iterator[tuple[Path, str, Path]]:
    """Yields the edges of all crates."""
    found = layers.workspace(root)
    for folder in sorted({*found["product"], *found["equipment"]}):
        roots = [root / folder / "src" / name for name in ("lib.rs", "main.rs")]
        for file in roots:
            if file.exists():
                yield from edges(load(file, None, file.parent))


def python(root: Path = ROOT) -> Iterator[tuple[Path, str, Path]]:
    """Yields the edges between Python files of one folder or package."""
    for top in PYTHON:
        for file in sorted((root / top).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module] if node.module else [alias.name for alias in node.names]
                for name in names:
                    target = file.parent / f"{name.rpartition('.')[2]}.py"
                    if target.exists() and target != file:
                        yield file, name, target


def circles(found: Iterator[tuple[Path, str, Path]]) -> list[list[tuple[Path, str, Path]]]:
    """Returns the edges of each strongly connected set of files."""
    out: dict[Path, list[tuple[Path, str, Path]]] = {}
    for edge in found:
        out.setdefault(edge[0], []).append(edge)
    reach: dict[Path, set[Path]] = {}
    for start in out:
        seen, todo = set(), [start]
        while todo:
            for _, _, to in out.get(todo.pop(), []):
                if to not in seen:
                    seen.add(to)
                    todo.append(to)
        reach[start] = seen
    sets = {
        frozenset(to for to in reach[file] if file in reach.get(to, ()))
        for file in out
        if file in reach[file]
    }
    return [
        sorted({edge for file in files for edge in out[file] if edge[2] in files})
        for files in sorted(sets, key=lambda files: sorted(files))
    ]


def workspace(root: Path = ROOT) -> list[list[tuple[str, str, str]]]:
    """Returns the circles of the workspace, with paths relative to `root`."""
    found = circles(rust(root)) + circles(python(root))
    return [
        [(str(a.relative_to(root)), name, str(b.relative_to(root))) for a, name, b in circle]
        for circle in found
    ]


def known() -> set[str]:
    """Returns the circles of the list."""
    return {line for line in LIST.read_text().splitlines() if line and not line.startswith("#")}


def line_of(circle: list[tuple[str, str, str]]) -> str:
    """Returns the files of a circle as the list has them."""
    return " ".join(sorted({source for source, _, _ in circle}))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    found = workspace()
    lines = [line_of(circle) for circle in found]
    if arguments:
        old = {file for line in known() for file in line.split()}
        if added := sorted({file for line in lines for file in line.split()} - old):
            print("not in the list, break these circles:", *added, sep="\n  ")
            return 1
        head = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
        LIST.write_text("\n".join([*head, *lines]) + "\n")
        return 0
    for circle, line in zip(found, lines):
        print("circle:", line)
        for source, name, target in circle:
            print(f"  {source} -> {target} ({name})")
    print(f"{len(found)} circles of {sum(len(line.split()) for line in lines)} files")
    return 0 if set(lines) <= known() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
