"""The alerts and the dashboard: their form, and that Prometheus understands every expression."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Iterator

MONITORING = pathlib.Path(__file__).resolve().parents[1]
PROMETHEUS = MONITORING / "prometheus"
# tools/setup.sh extracts it from Debian's package.
PROMTOOL = MONITORING.parents[1] / "target" / "promtool"


def promtool(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs promtool beside the rules."""
    if not PROMTOOL.exists():
        raise unittest.SkipTest(f"{PROMTOOL} is not there (make setup)")
    return subprocess.run(
        [str(PROMTOOL), *arguments], cwd=PROMETHEUS, input=input, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "grafana" / "sumac.json").read_text())
    return loaded


def queries() -> Iterator[tuple[str, str]]:
    """Yields each panel's title with each of its queries, whose variables have values."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], re.sub(r"\$\w+", ".*", query)


def used() -> set[str]:
    """Returns the names of the metrics in dashboard and alerts."""
    text = "\n".join([(PROMETHEUS / "alerts.yml").read_text(), *(query for _, query in queries())])
    variables = dashboard()["templating"]["list"]
    text += "\n".join(variable["query"]["query"] for variable in variables if variable["type"] == "query")
    return set(re.findall(r"\b(?:sumac|process)_[a-z_]+\b", text)) - {"job_name"}


class Alerts(unittest.TestCase):
    def assert_passes(self, result: subprocess.CompletedProcess[str]) -> None:
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_rules_and_the_example_are_valid(self) -> None:
        self.assert_passes(promtool("check", "rules", "alerts.yml"))
        self.assert_passes(promtool("check", "config", "prometheus.yml"))

    def test_alerts_fire_on_their_failures_only(self) -> None:
        self.assert_passes(promtool("test", "rules", "alerts_test.yml"))

    def test_every_alert_is_seen_to_fire_and_to_be_silent(self) -> None:
        names = re.findall(r"- alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text())
        cases = (PROMETHEUS / "alerts_test.yml").read_text()
        self.assertGreaterEqual(len(names), 15)
        for name in names:
            with self.subTest(name):
                self.assertIn(f"alertname: {name}}}", cases, "no case in which it is silent")
                self.assertRegex(cases, rf"alertname: {name}\n +exp_alerts:", "no case in which it fires")


class Dashboard(unittest.TestCase):
    def test_it_is_what_its_program_writes(self) -> None:
        command = [sys.executable, str(MONITORING / "grafana" / "dashboard.py"), "--check"]
        checked = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_it_has_the_form_that_grafana_imports(self) -> None:
        board = dashboard()
        self.assertIsNone(board["id"], "Grafana gives the number")
        self.assertRegex(board["uid"], r"^[a-zA-Z0-9_-]{1,40}$")
        self.assertGreaterEqual(board["schemaVersion"], 39)
        self.assertEqual(
            [variable["name"] for variable in board["templating"]["list"]], ["datasource", "instance", "job"]
        )
        panels = board["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            with self.subTest(panel["title"]):
                self.assertIn(panel["type"], {"row", "timeseries", "stat", "table"})
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], 24)
                cells = {
                    (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
                }
                self.assertFalse(cells & taken, "it lies over another")
                taken |= cells
                if panel["type"] != "row":
                    self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                    self.assertEqual(
                        len({target["refId"] for target in panel["targets"]}), len(panel["targets"])
                    )

    def test_prometheus_understands_every_query(self) -> None:
        rules = [{"record": f"query:{at}", "expr": query} for at, (_, query) in enumerate(queries())]
        self.assertGreater(len(rules), 40)
        # JSON is YAML, too.
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
            file.flush()
            checked = promtool("check", "rules", "--lint=none", file.name)
        self.assertEqual(checked.returncode, 0, checked.stdout)


if __name__ == "__main__":
    os.chdir(MONITORING)
    unittest.main()
