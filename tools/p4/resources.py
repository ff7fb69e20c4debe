"""The resources of a chip that a program takes, from the compiler's logs.

`logs/resources.json` of a pipeline has the memories and units of each stage, `phv.json` the containers of the
packet header vector.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Share:
    """A used part of all units of a kind."""

    used: int
    all: int

    def __str__(self) -> str:
        return f"{self.used} of {self.all} ({self.used / self.all:.0%})"


@dataclass(frozen=True)
class Stage:
    """The units of one stage of the pipeline that are used, and its tables."""

    number: int
    sram: int
    tcam: int
    salus: int
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Resources:
    """The resources that a program takes on a chip."""

    stages: Share
    phv_containers: Share
    phv_bits: Share
    sram: Share
    tcam: Share
    salus: Share
    tables: Share
    by_stage: tuple[Stage, ...]

    def json(self) -> Json:
        """Returns the same as JSON."""
        plain: Json = json.loads(json.dumps(asdict(self)))
        return plain


def resources(folder: pathlib.Path) -> Resources:
    """Reads the logs in a pipeline's folder of the compiler."""
    logs = folder / "logs"
    return of_logs(load(logs / "resources.json"), load(logs / "phv.json"))


def load(path: pathlib.Path) -> Json:
    """Reads a file of JSON."""
    loaded: Json = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def of_logs(log: Json, phv: Json) -> Resources:
    """Returns the resources in the content of the two logs."""
    pipeline = log["resources"]["mau"]
    stages = [stage for stage in pipeline["mau_stages"] if stage["logical_tables"]["ids"]]
    count = pipeline["nStages"]

    def share(used: Iterable[int], in_stage: int) -> Share:
        return Share(sum(used), in_stage * count)

    by_stage = tuple(of_stage(stage) for stage in stages)
    first = pipeline["mau_stages"][0]
    groups = [group for kind in log["resources"]["phv_containers"].values() for group in kind]
    used = phv["containers"]
    return Resources(
        # The last one counts: a stage without tables in between delays packets too.
        stages=Share(max((stage.number + 1 for stage in by_stage), default=0), count),
        phv_containers=Share(len(used), sum(group["units"] for group in groups)),
        phv_bits=Share(sum(map(used_bits, used)), sum(group["units"] * group["width"] for group in groups)),
        sram=share((stage.sram for stage in by_stage), first["rams"]["nRows"] * first["rams"]["nColumns"]),
        tcam=share((stage.tcam for stage in by_stage), first["tcams"]["nRows"] * first["tcams"]["nColumns"]),
        salus=share((stage.salus for stage in by_stage), first["meter_alus"]["nAlus"]),
        tables=share((len(stage.tables) for stage in by_stage), first["logical_tables"]["size"]),
        by_stage=by_stage,
    )


def of_stage(stage: Json) -> Stage:
    """Returns the used units of a stage."""
    stateful = [meter for meter in stage["meter_alus"]["meters"] if is_stateful(meter)]
    names = {table["table_name"] for table in stage["logical_tables"]["ids"]}
    return Stage(
        number=stage["stage_number"],
        sram=len({(ram["row"], ram["column"]) for ram in stage["rams"]["srams"]}),
        tcam=len({(ram["row"], ram["column"]) for ram in stage["tcams"]["tcams"]}),
        salus=len(stateful),
        tables=tuple(sorted(names)),
    )


def is_stateful(meter: Json) -> bool:
    """Whether a meter ALU serves a register and not a meter."""
    return any("stateful" in usage["used_for"] for usage in meter["usages"])


def used_bits(container: Json) -> int:
    """Returns how many bits of a container hold a field; fields whose lives do not overlap share bits."""
    bits: set[int] = set()
    for part in container["slices"]:
        bits.update(range(part["slice_info"]["lsb"], part["slice_info"]["msb"] + 1))
    return len(bits)
