#!/usr/bin/python3
"""Compiles the P4 programs, and prints what they take of a chip.

    tools/p4/build.py               for the behavioural model and for both chips, into target/p4
    tools/p4/build.py --model       for the behavioural model only (seconds), which the lab and the tests run
    tools/p4/build.py --json FILE   writes the resources as JSON too
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import branches
from resources import Json, resources
from toolchain import (
    BUILT, CHIPS, MODEL_COMPILER, ROOT, SOURCES, Chip, CompilerFailed, compile_for_chip, compile_for_model,
    missing, pipelines, programs,
)

HEAD = ("program", "pipeline", "chip", "stages", "PHV containers", "PHV bits", "SRAM blocks", "TCAM blocks",
        "stateful ALUs", "logical tables")


# Its time is that of the last whole build.
COMPLETE = ".complete"


class BranchesMissing(CompilerFailed):
    """The assembly lacks branches of a parser."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compiles the P4 programs, and prints the resources that they take of a chip."
    )
    parser.add_argument("--model", action="store_true", help="for the behavioural model only")
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="write the resources to a file, as JSON"
    )
    options = parser.parse_args()
    if why := missing([MODEL_COMPILER]) if options.model else missing():
        print(f"p4: {why}", file=sys.stderr)
        return 1
    try:
        build_model()
        if options.model:
            return 0
        build_chips()
    except CompilerFailed as error:
        print(f"p4: {error}", file=sys.stderr)
        return 1
    print(text(report()))
    if options.json is not None:
        options.json.write_text(json.dumps(report(), indent=2) + "\n", encoding="utf-8")
    return 0


def build_model() -> None:
    """Compiles what the behavioural model runs."""
    for source in programs("bmv2"):
        compile_for_model(source, BUILT / "bmv2")
        print(
            f"p4: {(BUILT / 'bmv2' / source.stem).relative_to(ROOT)}.json and .p4info.bin", file=sys.stderr
        )


def pairs() -> list[tuple[pathlib.Path, Chip]]:
    """Returns each program with each chip that it is for."""
    return [(source, chip) for source in programs("tofino") for chip in CHIPS if source.stem in chip.programs]


def build_chips() -> None:
    """Compiles each program for each chip."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda pair: build_chip(*pair), pairs()))


def tested() -> list[tuple[pathlib.Path, Chip]]:
    """Returns the pairs that tests compile: one, which takes a minute; all of them if SUMAC_P4_ALL is set."""
    found = pairs()
    return (
        found
        if os.environ.get("SUMAC_P4_ALL")
        else [pair for pair in found if pair[0].stem == "sumac_static"]
    )


def ensure_built() -> None:
    """Compiles what tests compile, unless its sources have not changed since the last time."""
    changed = max((path.stat().st_mtime for path in SOURCES.rglob("*.p4")), default=0.0)
    for source, chip in tested():
        complete = folder_of(source, chip) / COMPLETE
        if not complete.exists() or complete.stat().st_mtime < changed:
            build_chip(source, chip)


def report() -> Json:
    """Returns the resources of the built programs."""
    return {
        "programs": [
            entry for source, chip in pairs() for entry in entries(source, chip, folder_of(source, chip))
        ]
    }


def folder_of(source: pathlib.Path, chip: Chip) -> pathlib.Path:
    """Returns where a program for a chip is built."""
    return BUILT / chip.target / source.stem


def build_chip(source: pathlib.Path, chip: Chip) -> None:
    """Compiles a program for a chip, and checks that its parsers are whole."""
    folder = folder_of(source, chip)
    compile_for_chip(source, chip, folder)
    if lost := branches.missing(folder):
        raise BranchesMissing(
            f"{source} for {chip.title}: the compiler dropped branches of a parser:\n" + "\n".join(lost)
        )
    (folder / COMPLETE).touch()


def entries(source: pathlib.Path, chip: Chip, folder: pathlib.Path) -> list[Json]:
    """Returns the parts of the report about a program in a folder of the compiler: one for each pipeline."""
    found = ((name, resources(folder / name)) for name in pipelines(folder))
    return [
        {"program": source.stem, "pipeline": name, "chip": chip.title, **part.json()} for name, part in found
    ]


def cells(program: Json) -> tuple[str, ...]:
    """Returns the row of a program in the table."""
    kinds = ("stages", "phv_containers", "phv_bits", "sram", "tcam", "salus", "tables")
    shares = (f"{program[kind]['used']} of {program[kind]['all']}" for kind in kinds)
    return (program["program"], program["pipeline"], program["chip"], *shares)


def stage_cells(stage: Json) -> tuple[str, ...]:
    """Returns the row of a stage in a program's table of stages."""
    return tuple(str(stage[kind]) for kind in ("number", "sram", "tcam", "salus")) + (
        ", ".join(stage["tables"]),
    )


def text(report: Json) -> str:
    """Returns the report as tables for a terminal."""
    tables = [columns([HEAD, *map(cells, report["programs"])])]
    for program in report["programs"]:
        rows = [("stage", "SRAM", "TCAM", "SALU", "tables"), *map(stage_cells, program["by_stage"])]
        tables.append(
            f"{program['program']}, pipeline {program['pipeline']}, on {program['chip']}\n" + columns(rows)
        )
    return "\n\n".join(tables)


def columns(rows: list[tuple[str, ...]]) -> str:
    """Returns rows with columns of one width; the last one is as wide as it is."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]) for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
