"""Scrapes of both programs while they sum: Prometheus' own checks, the metrics that dashboard and alerts use,
and spans."""

from __future__ import annotations

import http.server
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from typing import Any

from .test_rules import promtool, used

ROOT = pathlib.Path(__file__).resolve().parents[3]
# These need AF_XDP, or an aggregator's XDP programs.
OF_XDP = {"sumac_umem_frames", "sumac_host_program_packets_total", "sumac_aggregator_interface_info"}


def load_lab() -> Any:
    """Returns the lab of the Python client's tests: an aggregator and two daemons over loopback."""
    sys.path.insert(0, str(ROOT / "userspace" / "python"))
    spec = importlib.util.spec_from_file_location(
        "sumac_loopback_lab", ROOT / "userspace/python/tests/lab.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def scrape(address: str) -> str:
    """Returns the metrics in Prometheus' text format."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def names(text: str) -> set[str]:
    """Returns the names of the series of a scrape, those of histograms with their suffixes."""
    return {re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


def listed(program: pathlib.Path) -> dict[str, str]:
    """Returns the metrics that a program lists, with their types."""
    output = subprocess.run([str(program), "metrics", "--json"], check=True, stdout=subprocess.PIPE).stdout
    return {metric["name"]: metric["type"] for metric in json.loads(output)}


def series(metrics: dict[str, str]) -> set[str]:
    """Returns the names of the series of listed metrics."""
    made = set()
    for name, kind in metrics.items():
        made |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else {name}
    return made


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes spans, as an OpenTelemetry collector does."""

    requests: list[tuple[str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


class Scrapes(unittest.TestCase):
    scrapes: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        lab_module = load_lab()
        cls.programs = [lab_module.program(name) for name in ("sumac", "sumac-agg")]
        if None in cls.programs:
            raise unittest.SkipTest("the programs are not built (make build)")
        collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        cls.addClassCleanup(collector.server_close)
        cls.addClassCleanup(collector.shutdown)
        lab = lab_module.Lab(
            daemon_config=f'tracing = {{ otlp = "http://127.0.0.1:{collector.server_port}" }}\n'
        )
        cls.addClassCleanup(lab.stop)
        drop = [str(cls.programs[1]), "drop", "--up", "0.1%", "--down", "0", "--host", str(lab.base_port)]
        subprocess.run(drop, check=True)
        cls.addresses = [lab.metrics(0), lab.aggregator_metrics]

        def sum_and_scrape(client: Any, job: Any, rank: int) -> list[str]:
            for _ in range(3):
                job.allreduce(job.buffer(20_000, "float32"))
            if rank == 1:
                # It stays in the job until the other one has scraped.
                job.allreduce(job.buffer(10, "float32"))
                return []
            scraped = [scrape(address) for address in cls.addresses]
            job.allreduce(job.buffer(10, "float32"))
            return scraped

        found = [lab.train(mode, sum_and_scrape, mode=mode)[0] for mode in ("static", "dynamic")]
        cls.scrapes = [text for texts in found for text in texts]
        cls.top = [
            json.loads(subprocess.run([str(program), "top", "--json", *options], check=True,
                                      stdout=subprocess.PIPE).stdout)
            for program, options in zip(cls.programs,
                                        (["--socket", lab.socket(0)], ["--host", str(lab.base_port)]))
        ]

    def test_prometheus_finds_nothing_to_complain_about(self) -> None:
        for text in self.scrapes:
            checked = promtool("check", "metrics", input=text)
            self.assertEqual((checked.returncode, checked.stdout), (0, ""))

    def test_what_is_exported_is_listed_and_the_other_way_round(self) -> None:
        exported = set().union(*map(names, self.scrapes))
        all_listed = series(listed(self.programs[0])) | series(listed(self.programs[1]))
        self.assertEqual(exported - all_listed, set())
        self.assertEqual(all_listed - exported - OF_XDP, set())

    def test_dashboard_and_alerts_use_what_is_exported(self) -> None:
        exported = set().union(*map(names, self.scrapes)) | OF_XDP
        self.assertGreater(len(used()), 50)
        self.assertEqual(used() - exported, set())

    def test_a_daemon_without_privileges_sends_spans(self) -> None:
        deadline = time.monotonic() + 60
        while not Collector.requests and time.monotonic() < deadline:
            time.sleep(0.05)
        path, body = Collector.requests[0]
        self.assertEqual(path, "/v1/traces")
        for text in (b"sumac-daemon", b"allreduce", b"first packets", b"network"):
            self.assertIn(text, body)

    def test_the_live_views_have_samples_for_scripts(self) -> None:
        self.assertIn("udp", self.top[0]["facts"]["path"])
        self.assertEqual(self.top[1]["facts"]["slots"], "0 of 1024 used")


if __name__ == "__main__":
    unittest.main()
