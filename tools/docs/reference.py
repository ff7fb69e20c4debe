#!/usr/bin/env python3
"""Writes the pages of docs/reference/ from the code.

Keys and errors are what the hidden command `sumac reference` prints, metrics what `sumac metrics` and
`sumac-agg metrics` print, the commands' options what `--help` prints.

    tools/docs/reference.py            writes the pages
    tools/docs/reference.py --check    exits with 1 if a page differs from the code
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from programs import PROGRAMS, ROOT, missing, program

FOLDER = ROOT / "docs" / "reference"
GENERATED = "<!-- Generated from the code by `make reference`: changes here are overwritten. -->\n\n"
# The width of `--help`, whose text clap wraps.
COLUMNS = "110"

Json = dict[str, Any]


def output(name: str, *arguments: str) -> str:
    """Returns what a program prints, whatever this process's terminal and environment are."""
    path = program(name)
    assert path is not None, f"{name} is not built"
    return subprocess.run(
        [str(path), *arguments], env={"PATH": "/usr/bin:/bin", "COLUMNS": COLUMNS}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True,
    ).stdout


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


class Configuration:
    """The keys of daemon.toml, from their JSON schema."""

    HEAD = ("key", "type", "default", "meaning")
    TABLES = {
        "[control_planes.NAME]": "ControlPlaneConfig", "[[allow]]": "AccessRule", "[[routes]]": "RouteConfig",
        "[parameter_host]": "ParameterHost", "[tracing]": "TracingConfig",
    }
    INTRODUCTION = (
        "# daemon.toml\n\nThe configuration of a host's daemon, a TOML file. `sumac daemon --check --config FILE` reads it "
        "with all that it refers to. Unknown keys are errors. *Required* has no default; a key without a default is "
        "absent unless set, and its meaning says what holds then. Editors and other programs have the same as a JSON "
        "schema: [daemon.schema.json](daemon.schema.json).\n\n"
    )

    def __init__(self, schema: Json) -> None:
        self._schema = schema

    def page(self) -> str:
        text = GENERATED + self.INTRODUCTION + self._keys(self._schema)
        for name, definition in self.TABLES.items():
            shown = self._schema["$defs"][definition]
            text += f"\n## {name}\n\n{shown['description']}\n\n{self._keys(shown)}"
        return text

    def _keys(self, schema: Json) -> str:
        required = schema.get("required", [])
        rows = []
        for name, key in schema["properties"].items():
            default = "*required*" if name in required else self._default(key)
            rows.append((f"`{name}`", self._type(key), default, self._meaning(key)))
        return table(self.HEAD, rows)

    @staticmethod
    def _default(key: Json) -> str:
        return f"`{json.dumps(key['default'])}`" if key.get("default") not in (None, [], {}) else ""

    def _type(self, key: Json) -> str:
        choices = key.get("anyOf") or key.get("oneOf") or []
        if "$ref" in key:
            return self._reference(key["$ref"])
        if choices:
            return " or ".join(self._type(choice) for choice in choices if choice != {"type": "null"})
        kinds = key["type"] if isinstance(key["type"], list) else [key["type"]]
        return " or ".join(self._plain(kind, key) for kind in kinds if kind != "null")

    def _plain(self, kind: str, key: Json) -> str:
        if kind == "array":
            return f"array of {self._type(key['items'])}"
        if kind == "object":
            return "tables" if "additionalProperties" in key else "table"
        return {"ipv4": "IPv4 address"}.get(key.get("format", ""), kind)

    def _reference(self, reference: str) -> str:
        shown = self._resolve(reference)
        if "oneOf" in shown:
            return ", ".join(f"`{json.dumps(choice['const'])}`" for choice in shown["oneOf"])
        return "table" if shown.get("type") == "object" else self._type(shown)

    def _resolve(self, reference: str) -> Json:
        return self._schema["$defs"][reference.rpartition("/")[2]]

    def _meaning(self, key: Json) -> str:
        text = key.get("description", "")
        if "$ref" in key:
            for choice in self._resolve(key["$ref"]).get("oneOf", []):
                text += f"<br>`{json.dumps(choice['const'])}`: {choice['description'].rstrip('.')}."
        return text


def errors(codes: list[Json]) -> str:
    """Returns the page of the codes of errors."""
    rows = [(f"`{code['code']}`", code["meaning"], code["remedy"]) for code in codes]
    return (
        GENERATED
        + "# Errors\n\nThe codes of errors in the [local API](../api.md#errors). Every error has a message that "
        "says what was being done and on what; most have a hint. Clients raise them by code.\n\n"
        + table(("code", "meaning", "remedy"), rows)
    )


def metrics() -> str:
    """Returns the page of the metrics of both daemons."""
    text = (
        GENERATED
        + "# Metrics\n\nThe metrics that [Prometheus scrapes](../monitoring.md#metrics). A histogram has the "
        "series `_bucket` (with the label `le`), `_count` and `_sum`.\n"
    )
    for title, name in (("sumac daemon", "sumac"), ("sumac-agg serve", "sumac-agg")):
        rows = [
            (f"`{metric['name']}`", metric["type"], ", ".join(f"`{label}`" for label in metric["labels"]),
             metric["help"])
            for metric in json.loads(output(name, "metrics", "--json"))
        ]
        text += f"\n## {title}\n\n" + table(("metric", "type", "labels", "meaning"), rows)
    return text


def commands(name: str, path: tuple[str, ...] = ()) -> str:
    """Returns the sections of a program's command and of those below it."""
    text = re.sub(r" +$", "", output(name, *path, "--help"), flags=re.MULTILINE)
    heading = "#" * min(1 + len(path), 4)
    section = f"{heading} {' '.join((name, *path))}\n\n```text\n{text.rstrip()}\n```\n"
    listed = re.search(r"^Commands:\n((?:  .*\n|\n)+)", text, re.MULTILINE)
    for command in re.findall(r"^  ([a-z][a-z0-9-]*)(?: |$)", listed[1] if listed else "", re.MULTILINE):
        if command != "help":
            section += "\n" + commands(name, (*path, command))
    return section


def pages() -> dict[str, str]:
    """Returns the text of each file by its name."""
    source = json.loads(output("sumac", "reference"))
    schema = source["configuration"]
    made = {
        "configuration.md": Configuration(schema).page(),
        "daemon.schema.json": json.dumps(schema, indent=2) + "\n",
        "errors.md": errors(source["errors"]),
        "metrics.md": metrics(),
    }
    return made | {f"{name}.md": GENERATED + commands(name) for name in PROGRAMS}


def main() -> int:
    if missing():
        print(missing(), file=sys.stderr)
        return 1
    made = pages()
    if sys.argv[1:] == ["--check"]:
        stale = [
            name
            for name, text in made.items()
            if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text
        ]
        print(
            "\n".join(f"docs/reference/{name} differs from the code: make reference" for name in stale)
            or "up to date"
        )
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for name, text in made.items():
        (FOLDER / name).write_text(text)
        print(f"docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
