#!/usr/bin/python3
"""Tells the product from its equipment, and counts the lines of both.

  tools/lint/layers.py            prints the Rust lines of the product, its equipment and all tests, by crate
  tools/lint/layers.py --totals   prints the totals alone, and how many are neither comments nor blank

The product are the `default-members` of the workspace, with the eBPF programs; the equipment are the other
members. Lines of files below `tests` and `benches`, of `tests.rs`, and of `#[cfg(test)]` modules at the ends
of files count as tests.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parents[2]
# Workspaces of their own, since they build for another target.
EBPF = ("xdp-prog", "nic-agg/ebpf")
CABLE = "tools/cable-prog"
# A crate of the product's builds, and of no program.
BUILD_TOOLS = ("tools/ebpf-build",)
TEST_MODULE = re.compile(r"(pub(\(\w+\))? )?mod \w+ \{")
KINDS = ("dependencies", "build-dependencies", "dev-dependencies")


def workspace(root: Path = ROOT) -> dict[str, list[str]]:
    """Returns the crates' folders by layer."""
    table = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]
    product = [*table["default-members"], "nic-agg/layout", *EBPF, *BUILD_TOOLS]
    equipment = [member for member in table["members"] if member not in product] + [CABLE]
    return {"product": product, "equipment": equipment}


def manifest(folder: str, root: Path = ROOT) -> dict:
    """Returns a crate's manifest."""
    return tomllib.loads((root / folder / "Cargo.toml").read_text())


def dependencies(crate: dict, shared: dict) -> dict[str, set[str]]:
    """Returns the names of the packages that a crate depends on, by kind of dependency.

    Tables of all targets count, and renamed packages by their own names. `shared` are the dependencies of
    the root's workspace.
    """
    shared = crate.get("workspace", {}).get("dependencies", shared)
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for table in (crate, *crate.get("target", {}).values()):
        for kind in KINDS:
            for name, terms in table.get(kind, {}).items():
                if isinstance(terms, dict) and terms.get("workspace"):
                    terms = shared[name]
                found[kind].add(terms.get("package", name) if isinstance(terms, dict) else name)
    return found


def sources(folder: str, crates: list[str], root: Path = ROOT) -> Iterator[Path]:
    """Yields the Rust files of a crate, without those of crates inside its folder."""
    inner = [root / other for other in crates if other != folder and other.startswith(f"{folder}/")]
    for path in sorted((root / folder).rglob("*.rs")):
        below = path.relative_to(root / folder).parts
        if "target" not in below and not any(path.is_relative_to(other) for other in inner):
            yield path


def divide(path: Path, root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Returns the lines of a file that are no tests, and those that are."""
    lines = path.read_text().splitlines()
    parts = path.relative_to(root).parts
    if "tests" in parts or "benches" in parts or path.name == "tests.rs":
        return [], lines
    for number, line in enumerate(lines):
        if line == "#[cfg(test)]" and TEST_MODULE.fullmatch("".join(lines[number + 1 : number + 2])):
            return lines[:number], lines[number:]
    return lines, []


def code(lines: list[str]) -> int:
    """Counts the lines that are neither blank nor a comment alone."""
    return sum(1 for line in lines if line.strip() and not line.lstrip().startswith("//"))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--totals"]):
        print(__doc__, file=sys.stderr)
        return 2
    layers = workspace()
    crates = [folder for folders in layers.values() for folder in folders]
    totals = {layer: [0, 0] for layer in ("product", "equipment", "tests")}
    for layer, folders in layers.items():
        for folder in folders:
            divided = [divide(path) for path in sources(folder, crates)]
            own, tests = ([line for part in parts for line in part] for parts in zip(*divided))
            for kind, lines in ((layer, own), ("tests", tests)):
                totals[kind][0] += len(lines)
                totals[kind][1] += code(lines)
            if not arguments:
                print(f"{layer:10} {folder:28} {len(own):7} lines, tests {len(tests):6}")
    print(", ".join(f"{kind} {lines} ({without} of code)" for kind, (lines, without) in totals.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
