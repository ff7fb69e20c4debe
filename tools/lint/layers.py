#!/usr/bin/python3
"""Tells the product from its equipment, and counts the lines of both.

  tools/lint/layers.py            prints the Rust lines of the product, its equipment and all tests, by crate
  tools/lint/layers.py --totals   prints the totals alone

The product are the `default-members` of the workspace, with the eBPF programs; the equipment are the other
members. Lines of files below `tests` and `benches`, of `tests.rs`, and of `#[cfg(test)]` modules at the ends
of files count as tests.
"""

from __future__ import annotations

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


def count(path: Path, folder: str, root: Path = ROOT) -> tuple[int, int]:
    """Returns the lines of a file that are no tests, and those that are."""
    lines = path.read_text().splitlines()
    parts = path.relative_to(root).parts
    if "tests" in parts or "benches" in parts or path.name == "tests.rs":
        return 0, len(lines)
    for number, line in enumerate(lines):
        if (
            line == "#[cfg(test)]"
            and number + 1 < len(lines)
            and lines[number + 1].startswith("mod ")
            and lines[number + 1].endswith("{")
        ):
            return number, len(lines) - number
    return len(lines), 0


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--totals"]):
        print(__doc__, file=sys.stderr)
        return 2
    layers = workspace()
    crates = [folder for folders in layers.values() for folder in folders]
    totals = {"product": 0, "equipment": 0, "tests": 0}
    for layer, folders in layers.items():
        for folder in folders:
            counts = [count(path, folder) for path in sources(folder, crates)]
            own, tests = sum(own for own, _ in counts), sum(tests for _, tests in counts)
            totals[layer] += own
            totals["tests"] += tests
            if not arguments:
                print(f"{layer:10} {folder:28} {own:7} lines, tests {tests:6}")
    print(", ".join(f"{layer} {lines}" for layer, lines in totals.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
