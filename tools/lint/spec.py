#!/usr/bin/python3
"""Checks that each mechanism of the papers is cited in the code and in a test:

  tools/lint/spec.py    prints the mechanisms with the number of their citations; exits with 1 if one has none

A citation is a comment `//= paper#section mechanism`; the mechanisms are those of spec.toml.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import layers

CITATION = re.compile(r"^\s*//= (\w+)#(.+)$")


def mechanisms() -> dict[str, dict[str, list[str]]]:
    """Returns the mechanisms as citations have them, each with its places in code and in tests."""
    papers = tomllib.loads(Path(__file__).with_name("spec.toml").read_text())
    names = [f"{paper}#{name}" for paper, table in papers.items() for name in table["mechanisms"]]
    return {name: {"code": [], "test": []} for name in names}


def sections() -> dict[str, str]:
    """Returns the titles of the sections that describe mechanisms, by `paper#section`."""
    papers = tomllib.loads(Path(__file__).with_name("spec.toml").read_text())
    titles = [(paper, *entry) for paper, table in papers.items() for entry in table["sections"].items()]
    return {f"{paper}#{number}": title for paper, number, title in titles}


def uncovered() -> list[str]:
    """Returns the sections without a mechanism, and the mechanisms of no section."""
    cited = {name.split()[0] for name in mechanisms()}
    return sorted(cited ^ set(sections()))


def citations(path: Path) -> list[tuple[str, bool, int]]:
    """Returns the citations of a file: each with whether it stands in a test, and its line."""
    found, in_tests = [], "tests" in path.relative_to(layers.ROOT).parts or path.name == "tests.rs"
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        in_tests = in_tests or line == "#[cfg(test)]"
        if match := CITATION.match(line):
            found.append((f"{match[1]}#{match[2]}", in_tests, number))
    return found


def collect() -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Returns the mechanisms with their citations, and the places of citations of anything else."""
    found, unknown = mechanisms(), []
    crates = [folder for folders in layers.workspace().values() for folder in folders]
    for folder in crates:
        for path in layers.sources(folder, crates):
            for name, is_test, number in citations(path):
                place = f"{path.relative_to(layers.ROOT)}:{number}"
                if name in found:
                    found[name]["test" if is_test else "code"].append(place)
                else:
                    unknown.append(f"{place}: {name}")
    return found, unknown


def main() -> int:
    found, unknown = collect()
    for name, places in found.items():
        lack = [kind for kind in ("code", "test") if not places[kind]]
        print(
            f"{name:72} {'no ' + ' and no '.join(lack) if lack else 'code ' + places['code'][0] + ', test ' + places['test'][0]}"
        )
    for section in uncovered():
        print("no mechanism, or no section:", section)
    for place in unknown:
        print("no such mechanism:", place)
    return (
        1
        if unknown
        or uncovered()
        or any(not places[kind] for places in found.values() for kind in ("code", "test"))
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
