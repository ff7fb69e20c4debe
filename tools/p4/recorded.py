#!/usr/bin/python3
"""Records the tables that a control plane writes, for the played server of BFRuntime that nic-agg's tests
talk to.

    tools/p4/recorded.py    after `make p4`: from the program for Tofino 2 in target/p4
                            into tools/played-switch/src/program.json
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

from toolchain import BUILT, ROOT, programs

RECORD = ROOT / "tools" / "played-switch" / "src" / "program.json"
# Keys that the control plane writes are named by the program; those of other tables have the paths of fields:
# hdr.ipv4.src.
NAMED = re.compile(r"\$?\w+")

Json = dict[str, Any]


def tables(schema: pathlib.Path) -> list[Json]:
    """Returns the tables of a bf-rt.json that a control plane writes or reads."""
    return [table for table in json.loads(schema.read_text(encoding="utf-8"))["tables"] if is_written(table)]


def is_written(table: Json) -> bool:
    """Returns whether a control plane writes or reads a table. A switch for all packets is the operator's."""
    if table["table_type"] == "Counter":
        return True
    is_constant = "ConstTable" in table["attributes"] or not table["key"]
    return table["table_type"] == "MatchAction_Direct" and not is_constant and all(
        NAMED.fullmatch(field["name"]) for field in table["key"]
    )


def shape(table: Json) -> tuple[object, ...]:
    """Returns what the control plane has to know of a table: names without paths, ways to match, and
    widths."""
    keys = [(field["name"], field["match_type"], field["type"].get("width")) for field in table["key"]]
    actions = {last(action["name"]): fields(action["data"]) for action in table.get("action_specs", [])}
    return (table["table_type"], keys, actions)


def fields(data: list[Json]) -> list[tuple[str, int]]:
    """Returns the names and widths of an action's fields."""
    return [(field["name"], field["type"]["width"]) for field in data]


def last(name: str) -> str:
    """Returns a name without its path."""
    return name.rsplit(".", 1)[-1]


def main() -> int:
    lines = ",\n".join(
        json.dumps(table, separators=(",", ":")) for table in tables(built(programs("tofino")[0], "tofino2"))
    )
    RECORD.write_text(
        f'{{"schema_version":"1.0.0","tables":[\n{lines}\n],"learn_filters":[]}}\n', encoding="utf-8"
    )
    return 0


def built(source: pathlib.Path, target: str) -> pathlib.Path:
    """Returns the bf-rt.json of a built program."""
    return BUILT / target / source.stem / "bf-rt.json"


if __name__ == "__main__":
    sys.exit(main())
