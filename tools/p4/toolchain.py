"""The P4 compilers, found on PATH, and what they are called with."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "p4"
BUILT = ROOT / "target" / "p4"

MODEL_COMPILER = "p4c-bm2-ss"
CHIP_COMPILER = "p4c-barefoot"
ASSEMBLER = "bfas"
# The chip's pipes that run a pipeline of a program. The configurations of the SDE list four, for chips with
# fewer as well. The first of `front` is FRONT_PIPE of p4/tofino/pipelines.p4: `sumac-agg serve` sets the queues
# of its port in loopback.
PIPES = {"pipe": [0, 1, 2, 3], "front": [0, 2, 3], "slots": [1]}


class CompilerFailed(Exception):
    """A compiler or the assembler did not accept a program."""


@dataclass(frozen=True)
class Chip:
    """A chip that programs are compiled for."""

    title: str
    target: str
    arch: str
    # The programs of p4/tofino that are for it.
    programs: tuple[str, ...]


CHIPS = (
    Chip("Tofino 1", "tofino", "tna", ("sumac_dynamic", "sumac_static")),
    Chip("Tofino 2", "tofino2", "t2na", ("sumac",)),
)


def missing(compilers: Sequence[str] = (MODEL_COMPILER, CHIP_COMPILER, ASSEMBLER)) -> str:
    """Returns why these cannot compile; empty if all are there."""
    absent = [name for name in compilers if shutil.which(name) is None]
    return f"{', '.join(absent)}: not on PATH; docs/p4.md says how to get them" if absent else ""


def programs(folder: str) -> list[pathlib.Path]:
    """Returns the programs in a folder of p4/: its files with a `main`."""
    sources = sorted((SOURCES / folder).glob("*.p4"))
    return [source for source in sources if " main;" in source.read_text(encoding="utf-8")]


def compile_for_model(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Compiles a program for the behavioural model: into NAME.json and NAME.p4info.bin."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / source.stem
    information = ["--p4runtime-files", f"{out}.p4info.bin"]
    run([MODEL_COMPILER, "--arch", "v1model", "-o", f"{out}.json", *information, str(source)], source)


def compile_for_chip(source: pathlib.Path, chip: Chip, folder: pathlib.Path) -> None:
    """Compiles and assembles a program for a chip, into what bf_switchd loads: NAME.conf, bf-rt.json, and of
    each pipeline PIPELINE/context.json and PIPELINE/tofino.bin. The compiler's logs are in PIPELINE/logs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # With -g and --verbose it writes its logs.
    logs = ["-g", "--verbose", "-Ttable_summary:1"]
    schema = ["--bf-rt-schema", str(folder / "bf-rt.json")]
    run([CHIP_COMPILER, "--target", chip.target, "--arch", chip.arch, *logs, *schema, "-o", str(folder),
         str(source)], source)
    for pipeline in pipelines(folder):
        (assembly,) = (folder / pipeline).glob("*.bfa")
        (folder / pipeline / "logs").mkdir(exist_ok=True)
        run([ASSEMBLER, "--target", chip.target, "-o", str(folder / pipeline), str(assembly)], assembly)
    configured = configuration(source, chip, pipelines(folder))
    (folder / f"{source.stem}.conf").write_text(json.dumps(configured, indent=4) + "\n", encoding="utf-8")


def pipelines(folder: pathlib.Path) -> list[str]:
    """Returns the names of the pipelines of a compiled program."""
    return sorted({assembly.parent.name for assembly in folder.glob("*/*.bfa")})


def configuration(source: pathlib.Path, chip: Chip, names: Sequence[str]) -> dict[str, object]:
    """Returns the program's part of bf_switchd's configuration. Paths are relative to its file."""
    pipes = [
        {
            "p4_pipeline_name": name,
            "context": f"{name}/context.json",
            "config": f"{name}/{chip.target}.bin",
            "pipe_scope": PIPES[name],
        }
        for name in names
    ]
    program = {"program-name": source.stem, "bfrt-config": "bf-rt.json", "p4_pipelines": pipes}
    return {"p4_devices": [{"device-id": 0, "p4_programs": [program]}]}


def run(command: Sequence[str], source: pathlib.Path) -> None:
    """Runs a compiler; its warnings are shown only if it fails."""
    # The program's own folder is its include path.
    finished = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        told = (finished.stderr + finished.stdout).strip()
        raise CompilerFailed(f"{source}: {command[0]} ended with {finished.returncode}:\n{told[-6000:]}")
