"""The branches of a program's parsers, as its source has them and as the assembly has them.

A snapshot of the compiler dropped the match registers of parser states on Tofino 1 (p4lang/p4c#5753). Such a
state has no `match:` line in the assembly, its first branch is taken by every packet, and neither compiler
nor assembler complains.

The source's branches are those of the compiler's own front end, `frontend-ir.json`, where constants are
evaluated and the rest of the compiler has not begun. The compiler renames, splits and merges states. So
branches are compared by their values: the bits that a branch compares are the same in both, whatever the
state's name is and whichever bits around them are loaded.
"""

from __future__ import annotations

import itertools
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

from resources import Json, load

GRESSES = ("ingress", "egress")

SECTION = re.compile(r"^(\w+) (\w+):")
STATE = re.compile(r"^    (\S+):$")
REGISTERS = re.compile(r"^      match: \[ (.*) \]$")
BRANCH = re.compile(r"^      (0b[01*]+|0o[0-7*]+|0x[0-9a-f*]+|\*):$")

Field = str
"""The compared bits of one field of a key: `0`, `1`, and `*` for a bit that is not compared."""


class NotUnderstood(Exception):
    """A select whose keys this module does not know."""


@dataclass(frozen=True)
class Branch:
    """A value of a select in the source that leads to a state."""

    state: str
    fields: tuple[Field, ...]
    to: str

    def __str__(self) -> str:
        return f"state {self.state}: ({', '.join(self.fields)}) to {self.to}"

    def compared(self) -> set[str]:
        """Returns the compared bits, for each order in which the fields may be in the match registers."""
        fields = [bits.replace("*", "") for bits in self.fields]
        return {"".join(order) for order in itertools.permutations(fields)}


@dataclass
class MatchState:
    """A state of a parser in the assembly."""

    name: str
    registers: tuple[str, ...] = ()
    branches: list[str] = field(default_factory=list)

    def compared(self) -> set[str]:
        """Returns the compared bits of each branch; none without registers, whatever the branches are."""
        return {bits.replace("*", "") for bits in self.branches} if self.registers else set()


def missing(folder: pathlib.Path) -> list[str]:
    """Returns the branches of the source that the assembly in a folder of the compiler lacks."""
    lost = []
    for pipeline, source in of_source(load(folder / "frontend-ir.json")).items():
        assemblies = sorted((folder / pipeline).glob("*.bfa"))
        if not assemblies:
            raise FileNotFoundError(f"no assembly in {folder / pipeline}")
        assembled = of_assembly(assemblies[0].read_text(encoding="utf-8"))
        for gress in GRESSES:
            lost += differences(source[gress], assembled.get(gress, []), f"{pipeline} {gress}")
    return lost


def differences(source: list[Branch], assembled: list[MatchState], gress: str) -> list[str]:
    """Returns a line for each select of the source that no state of the assembly has whole, and for each
    state of the assembly that has several branches and nothing to tell them apart."""
    lost = []
    selects = [list(branches) for _, branches in itertools.groupby(source, key=lambda branch: branch.state)]
    # A state of the assembly stands for one select, as two selects may have the same branches.
    free = list(assembled)
    for wanted in sorted(selects, key=len, reverse=True):
        best = min(free, key=lambda state: (len(absent(wanted, state)), len(state.branches)),
                   default=MatchState("none"))
        lost += [f"{gress}: no match for {branch}" for branch in absent(wanted, best)]
        free = [state for state in free if state is not best]
    for state in assembled:
        if not state.registers and state.branches != ["*"]:
            lost.append(
                f"{gress}: state {state.name} of the assembly has {len(state.branches)} branches and no match registers"
            )
    return lost


def absent(wanted: list[Branch], state: MatchState) -> list[Branch]:
    """Returns the branches of a select that a state of the assembly lacks."""
    compared = state.compared()
    return [branch for branch in wanted if not branch.compared() & compared]


def of_assembly(text: str) -> dict[str, list[MatchState]]:
    """Returns the states of each gress's parser in an assembly."""
    states: dict[str, list[MatchState]] = {}
    into: Optional[list[MatchState]] = None
    for line in text.splitlines():
        if section := SECTION.match(line):
            into = states.setdefault(section[2], []) if section[1] == "parser" else None
        elif into is None:
            continue
        elif state := STATE.match(line):
            into.append(MatchState(state[1]))
        elif into and (registers := REGISTERS.match(line)):
            into[-1].registers = tuple(registers[1].split(", "))
        elif into and (branch := BRANCH.match(line)):
            into[-1].branches.append(bits_of(branch[1], width_of(into[-1].registers)))
    return states


def width_of(registers: tuple[str, ...]) -> int:
    """Returns the bits of match registers."""
    return sum(16 if register == "half" else 8 for register in registers)


def bits_of(pattern: str, width: int) -> str:
    """Returns a pattern of the assembly, for registers of this width, bit by bit."""
    if pattern.startswith("0o"):
        # Digits of three bits reach beyond the registers.
        return "".join("***" if digit == "*" else f"{int(digit, 8):03b}" for digit in pattern[2:])[-width:]
    if pattern.startswith("0x"):
        return "".join("****" if digit == "*" else f"{int(digit, 16):04b}" for digit in pattern[2:])
    return pattern.removeprefix("0b")


def of_source(ir: Json) -> dict[str, dict[str, list[Branch]]]:
    """Returns the branches of the parsers of each pipeline and gress, by state, without the defaults."""
    nodes = Nodes(ir)
    parsers = {node["name"]: node for node in nodes.of_type("P4Parser")}
    return {
        pipeline: {gress: list(branches_of(parsers[name], nodes)) for gress, name in zip(GRESSES, names)}
        for pipeline, names in nodes.parsers_of_pipelines().items()
    }


class Nodes:
    """The nodes of the compiler's representation, each of which is written out once and then referred to by
    number."""

    def __init__(self, ir: Json) -> None:
        self._by_number: dict[int, Json] = {}
        self._collect(ir)

    def _collect(self, value: Any) -> None:
        if isinstance(value, dict):
            if "Node_Type" in value:
                self._by_number.setdefault(value["Node_ID"], value)
            for child in value.values():
                self._collect(child)
        elif isinstance(value, list):
            for child in value:
                self._collect(child)

    def resolve(self, node: Json) -> Json:
        """Returns the whole of a node that may be a reference."""
        return node if "Node_Type" in node else self._by_number[node["Node_ID"]]

    def of_type(self, name: str) -> Iterator[Json]:
        """Returns all nodes of a type."""
        return (node for node in self._by_number.values() if node["Node_Type"] == name)

    def parsers_of_pipelines(self) -> dict[str, tuple[str, str]]:
        """Returns the names of the ingress's and the egress's parser of each pipeline: its first and its
        fourth argument."""
        found = {}
        for node in self.of_type("Declaration_Instance"):
            arguments = [self.resolve(argument) for argument in self.resolve(node["arguments"])["vec"]]
            types = [self.constructed(argument) for argument in arguments]
            if len(types) >= 6 and types[0] and types[3]:
                found[str(node["name"])] = (types[0], types[3])
        if not found:
            raise NotUnderstood("no pipeline of an ingress's and an egress's parser, control and deparser")
        return found

    def constructed(self, argument: Json) -> str:
        """Returns the name of the type that an argument constructs."""
        expression = self.resolve(argument["expression"])
        if expression["Node_Type"] != "ConstructorCallExpression":
            return ""
        named = self.resolve(expression["constructedType"])
        return str(self.resolve(named["path"])["name"]) if "path" in named else str(named.get("name", ""))

    def width(self, constant: Json) -> int:
        """Returns the width of a constant."""
        kind = self.resolve(constant["type"])
        if kind["Node_Type"] == "Type_Boolean":
            return 1
        return int(kind["size"])


def branches_of(parser: Json, nodes: Nodes) -> Iterator[Branch]:
    """Returns the branches of all selects of a parser."""
    for state in map(nodes.resolve, nodes.resolve(parser["states"])["vec"]):
        select = state.get("selectExpression")
        select = nodes.resolve(select) if select else {}
        if select.get("Node_Type") != "SelectExpression":
            continue
        cases = [nodes.resolve(case) for case in nodes.resolve(select["selectCases"])["vec"]]
        for case in cases:
            target = str(nodes.resolve(nodes.resolve(case["state"])["path"])["name"])
            for fields in keys_of(nodes.resolve(case["keyset"]), nodes):
                # A branch that compares nothing is the default.
                if any(bits.strip("*") for bits in fields):
                    yield Branch(state["name"], fields, target)


def keys_of(keyset: Json, nodes: Nodes) -> Iterator[tuple[Field, ...]]:
    """Returns the patterns of a case: several where a range is none of a power of two."""
    if keyset["Node_Type"] == "ListExpression":
        parts = [nodes.resolve(part) for part in nodes.resolve(keyset["components"])["vec"]]
    else:
        parts = [keyset]
    return itertools.product(*(list(patterns(part, nodes)) for part in parts))


def patterns(key: Json, nodes: Nodes) -> Iterator[Field]:
    """Returns the patterns of one field's key."""
    kind = key["Node_Type"]
    if kind == "DefaultExpression":
        yield ""
    elif kind in ("Constant", "BoolLiteral"):
        width = nodes.width(key)
        yield f"{int(key['value']) % (1 << width):0{width}b}"
    elif kind == "Mask":
        value, mask = nodes.resolve(key["left"]), nodes.resolve(key["right"])
        width = nodes.width(value)
        pairs = zip(f"{int(value['value']):0{width}b}", f"{int(mask['value']):0{width}b}")
        yield "".join(bit if compared == "1" else "*" for bit, compared in pairs)
    elif kind == "Range":
        low, high = nodes.resolve(key["left"]), nodes.resolve(key["right"])
        yield from prefixes(int(low["value"]), int(high["value"]), nodes.width(low))
    else:
        raise NotUnderstood(f"a select with a key of the kind {kind}")


def prefixes(low: int, high: int, width: int) -> Iterator[Field]:
    """Returns the prefixes that a range is made of, the lowest first."""
    while low <= high:
        free = 0
        while free < width and low % (2 << free) == 0 and low + (2 << free) - 1 <= high:
            free += 1
        prefix = f"{low >> free:0{width - free}b}" if free < width else ""
        yield prefix + "*" * free
        low += 1 << free
