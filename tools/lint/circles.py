#!/usr/bin/python3
"""Finds circles of imports between Rust files:

  tools/lint/circles.py    prints each circle, and exits with 1 if one is not in circles.txt

A file uses another when a path of it (`use`, or inline) leads to a name that the other defines. A re-export leads on to the file that
defines the name. A folder's `mod.rs` and the files in it are files like any others.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import layers

ROOT = layers.ROOT
# Circles that are still to be broken, one a line. The list only shrinks: a test fails when a circle is new, and when one is gone.
LIST = Path(__file__).with_name("circles.txt")

PATH = re.compile(r"(?<![\w:])((?:crate|self|super)(?:::\w+)*)(::\{)?")
DEFINITION = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:const\s+|async\s+|unsafe\s+|extern\s+\"C\"\s+)*"
    r"(?:fn|struct|enum|union|trait|type|const|static|mod|macro_rules!)\s+(\w+)",
    re.MULTILINE,
)
REEXPORT = re.compile(r"^\s*pub(?:\([^)]*\))?\s+use\s+([^;]+);", re.MULTILINE)


def without_tests(text: str) -> str:
    """Returns the code without its tests and comments."""
    text = re.split(r"^#\[cfg\(test\)\]$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return re.sub(r"//[^\n]*", "", text)


def leaves(tree: str) -> list[str]:
    """Returns the paths of a `use` tree."""
    tree = re.sub(r"\s+", " ", tree).strip()
    brace = tree.find("{")
    if brace < 0:
        return [re.sub(r" as \w+$", "", tree).replace(" ", "")]
    prefix, inner = tree[:brace], tree[brace + 1 : tree.rfind("}")]
    parts, depth, start = [], 0, 0
    for at, char in enumerate(inner + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(inner[start:at])
            start = at + 1
    return [prefix.replace(" ", "") + leaf for part in parts if part.strip() for leaf in leaves(part)]


class Crate:
    """The modules of a crate, and the names that they define."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.files: dict[tuple[str, ...], Path] = {}
        for path in sorted(source.rglob("*.rs")):
            parts = path.relative_to(source).with_suffix("").parts
            if "tests" in parts:
                continue
            name = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
            self.files[name] = path
        self.code = {name: without_tests(path.read_text()) for name, path in self.files.items()}
        self.exports = {name: self.reexports(name) for name in self.files}

    def absolute(self, module: tuple[str, ...], path: str) -> tuple[str, ...] | None:
        """Returns a path from the crate's root; `None` for one that leaves the crate."""
        parts = [part for part in path.split("::") if part]
        base = list(module)
        if parts[0] == "crate":
            base, parts = [], parts[1:]
        elif parts[0] == "self":
            parts = parts[1:]
        elif parts[0] == "super":
            while parts and parts[0] == "super":
                base, parts = base[:-1], parts[1:]
        elif (*module, parts[0]) not in self.files:
            return None
        return (*base, *parts)

    def reexports(self, module: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        found = {}
        for tree in REEXPORT.findall(self.code[module]):
            for leaf in leaves(tree):
                path = self.absolute(module, leaf)
                if path:
                    found[path[-1]] = path
        return found

    def resolve(self, path: tuple[str, ...], depth: int = 0) -> tuple[str, ...] | None:
        """Returns the module that defines what a path names."""
        module = path
        while module not in self.files and module:
            module = module[:-1]
        rest = path[len(module) :]
        if not rest:
            return module if depth else None
        target = self.exports[module].get(rest[0])
        if target and depth < 8:
            return self.resolve(target, depth + 1)
        return module if rest[0] in DEFINITION.findall(self.code[module]) else None

    def uses(self, module: tuple[str, ...]) -> set[tuple[str, ...]]:
        """Returns the modules whose names a module uses, re-exports aside."""
        code = REEXPORT.sub("", self.code[module])
        paths = []
        for tree in re.findall(r"^\s*use\s+([^;]+);", code, flags=re.MULTILINE):
            paths += leaves(tree)
        paths += [match.group(1) for match in PATH.finditer(re.sub(r"^\s*use\s+[^;]+;", "", code, flags=re.MULTILINE))]
        found = set()
        for path in paths:
            absolute = self.absolute(module, path)
            target = self.resolve(absolute) if absolute else None
            if target is not None and target != module:
                found.add(target)
        return found

    def circles(self) -> list[list[tuple[str, ...]]]:
        """Returns the strongly connected components of more than one file."""
        edges = {module: self.uses(module) for module in self.files}

        def reach(start: tuple[str, ...]) -> set[tuple[str, ...]]:
            seen, todo = set(), [start]
            while todo:
                for target in edges.get(todo.pop(), ()):
                    if target not in seen:
                        seen.add(target)
                        todo.append(target)
            return seen

        reached = {module: reach(module) for module in self.files}
        found, done = [], set()
        for module in self.files:
            circle = [other for other in self.files if other in reached[module] and module in reached[other]]
            if len(circle) > 1 and module not in done:
                done.update(circle)
                found.append(circle)
        return found

    def name(self, module: tuple[str, ...]) -> str:
        return str(self.files[module].relative_to(ROOT))


def all_circles() -> list[tuple[Crate, list[tuple[str, ...]]]]:
    """Returns the circles of all crates."""
    crates = [Crate(ROOT / folder / "src") for folders in layers.workspace().values() for folder in folders]
    return [(crate, circle) for crate in crates for circle in crate.circles()]


def known() -> set[str]:
    """Returns the circles of the list."""
    return {line for line in LIST.read_text().splitlines() if line and not line.startswith("#")}


def line_of(crate: Crate, circle: list[tuple[str, ...]]) -> str:
    """Returns a circle as the list has it."""
    return " ".join(crate.name(module) for module in circle)


def main() -> int:
    found = all_circles()
    for crate, circle in found:
        print("circle:", line_of(crate, circle))
        for module in circle:
            for target in sorted(crate.uses(module) & set(circle)):
                print(f"  {crate.name(module)} uses {crate.name(target)}")
    return 0 if {line_of(*each) for each in found} <= known() else 1


if __name__ == "__main__":
    sys.exit(main())
