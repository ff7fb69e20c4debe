#!/usr/bin/env python3
"""Writes sumac.json, the dashboard that Grafana imports, from the panels below.

    tools/monitoring/grafana/dashboard.py            writes it
    tools/monitoring/grafana/dashboard.py --check    exits with 1 if it differs
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

FILE = pathlib.Path(__file__).with_name("sumac.json")
# Grafana 10.4; newer ones migrate it when they load it.
SCHEMA_VERSION = 39
WIDTH = 24
HEIGHT = 8

Json = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The series of the selected hosts; with JOB those of the selected jobs only.
HOST = 'instance=~"$instance"'
JOB = f'{HOST}, job_name=~"$job"'


def rate(metric: str, labels: str = HOST) -> str:
    """Returns the rate of a counter."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def quantile(fraction: float, metric: str) -> str:
    """Returns a quantile of a histogram of each job."""
    return f"histogram_quantile({fraction}, sum by (job_name, le) ({rate(f'{metric}_bucket', JOB)}))"


def quantiles(metric: str) -> list[tuple[str, str]]:
    return [(quantile(fraction, metric), f"{{{{job_name}}}} p{fraction * 100:g}") for fraction in (0.5, 0.99)]


class Panel:
    """One panel: its queries with their legends."""

    def __init__(
        self, title: str, unit: str, queries: list[tuple[str, str]], kind: str = "timeseries", help: str = "",
        width: int = 8,
        **defaults: Any,
    ) -> None:
        self.title, self.unit, self.queries, self.kind, self.help, self.width = title, unit, queries, kind, help, width
        self.defaults = defaults

    def json(self, number: int, x: int, y: int) -> Json:
        targets = [
            {
                "datasource": DATASOURCE, "expr": query, "legendFormat": legend, "refId": chr(ord("A") + at),
                "instant": self.kind == "table", "range": self.kind != "table",
                "format": "table" if self.kind == "table" else "time_series",
            }
            for at, (query, legend) in enumerate(self.queries)
        ]
        options: Json = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                         "tooltip": {"mode": "multi", "sort": "desc"}}
        if self.kind == "stat":
            options = {"colorMode": "value", "graphMode": "area",
                       "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        if self.kind == "table":
            options = {"showHeader": True}
        panel: Json = {
            "id": number, "type": self.kind, "title": self.title, "description": self.help,
            "datasource": DATASOURCE,
            "gridPos": {"h": HEIGHT, "w": self.width, "x": x, "y": y}, "targets": targets, "options": options,
            "fieldConfig": {"defaults": {"unit": self.unit, **self.defaults}, "overrides": []},
        }
        if self.kind == "table":
            hidden = {name: True for name in ("Time", "Value", "__name__", "job")}
            panel["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
        return panel


LAST = rate("sumac_aggregator_worker_contributions_last_total", JOB)
LAST_OF_ALL = f"sum by (instance, job_number) ({LAST})"

ROWS: list[tuple[str, list[Panel]]] = [
    ("Overview", [
        Panel("Daemons and aggregators", "none", [
            (f"count(sumac_daemon_info{{{HOST}}})", "daemons"),
            (f"count(sumac_aggregator_info{{{HOST}}})", "aggregators"),
        ], "stat"),
        Panel("Jobs", "none", [(f"sum by (state) (sumac_control_jobs{{{HOST}}})", "{{state}}")], "stat",
              "Jobs of the control plane. One that waits lacks workers."),
        Panel("Slots used", "percentunit", [(f"sumac_aggregator_slots_used{{{HOST}}} / sumac_aggregator_slots{{{HOST}}}", "{{instance}}")], "stat",
              min=0, max=1),
    ]),
    ("Throughput", [
        Panel("Sent per job", "Bps", [(f"sum by (job_name) ({rate('sumac_job_sent_bytes_total', JOB)})",
                                       "{{job_name}} sent"),
                                      (f"sum by (job_name) ({rate('sumac_job_received_bytes_total', JOB)})",
                                       "{{job_name}} received")],
              help="UDP payload of all workers."),
        Panel("Results per worker", "pps", [(rate("sumac_job_results_total", JOB),
                                             "{{job_name}} rank {{rank}}")]),
        Panel("Operations per worker", "ops", [(rate("sumac_job_operations_ended_total", JOB),
                                                "{{job_name}} rank {{rank}}")]),
    ]),
    ("Loss", [
        Panel("Chunks sent again", "percentunit", [
            (f"{rate('sumac_job_chunks_resent_total', JOB)} / {rate('sumac_job_chunks_sent_total', JOB)}",
             "{{job_name}} rank {{rank}}"),
        ], min=0),
        Panel("Chunks considered lost", "cps", [
            (f"sum by (job_name) ({rate('sumac_job_losses_by_order_total', JOB)})", "{{job_name}} by order"),
            (f"sum by (job_name) ({rate('sumac_job_losses_by_timeout_total', JOB)})",
             "{{job_name}} by timeout"),
            (f"sum by (job_name) ({rate('sumac_job_losses_spurious_total', JOB)})", "{{job_name}} spurious"),
        ], help="Spurious: the result was only late."),
        Panel("Congestion", "cps", [
            (f"sum by (job_name) ({rate('sumac_job_results_marked_total', JOB)})",
             "{{job_name}} marked results"),
            (f"sum by (job_name) ({rate('sumac_job_window_halvings_total', JOB)})", "{{job_name}} halvings"),
            (f"sum by (job_name) ({rate('sumac_job_collisions_total', JOB)})", "{{job_name}} collisions"),
        ]),
    ]),
    ("Latency", [
        Panel("Round trips", "s", quantiles("sumac_job_round_trip_seconds"),
              help="From a packet to its answer, of chunks that were sent once."),
        Panel("Chunk completion", "s", quantiles("sumac_job_chunk_completion_seconds"),
              help="From a chunk's first packet to its result."),
        Panel("Wait for the last worker", "s", quantiles("sumac_aggregator_job_aggregation_seconds"),
              help="At the aggregator: from a chunk's first contribution to its last."),
    ]),
    ("Windows and slots", [
        Panel("Chunks in flight", "none", [(f"sumac_job_chunks_in_flight{{{JOB}}}",
                                            "{{job_name}} rank {{rank}}")]),
        Panel("Congestion window", "none", [(f"sumac_job_window_chunks{{{JOB}}} > 0",
                                             "{{job_name}} rank {{rank}}")],
                                             help="Of dynamic jobs, in chunks."),
        Panel("Slots of a job", "none", [(f"sumac_aggregator_job_slots{{{JOB}}}",
                                          "{{job_name}} {{job_number}}")]),
    ]),
    ("Stragglers", [
        Panel("Share of chunks that waited for a worker", "percentunit", [
            (f"{LAST} / on (instance, job_number) group_left () {LAST_OF_ALL}", "{{job_name}} rank {{rank}}"),
        ], help="Workers that are equally fast have equal shares.", width=12, min=0, max=1),
        Panel("Mean lateness behind the first contribution", "s", [
            (f"{rate('sumac_aggregator_worker_lateness_seconds_total', JOB)} / {rate('sumac_aggregator_worker_lateness_chunks_total', JOB)}",
             "{{job_name}} rank {{rank}}"),
        ], width=12),
    ]),
    ("Aggregator", [
        Panel("Slots used", "none", [
            (f"sumac_aggregator_slots_used{{{HOST}}}", "{{instance}} static"),
            (f"sumac_aggregator_slots{{{HOST}}}", "{{instance}} static, all"),
            (f"sumac_aggregator_dynamic_slots_used{{{HOST}}}", "{{instance}} dynamic"),
            (f"sumac_aggregator_dynamic_slots{{{HOST}}} * sumac_aggregator_shards{{{HOST}}}",
             "{{instance}} dynamic, all"),
        ]),
        Panel("Frames by outcome", "pps", [(f"sum by (reason) ({rate('sumac_aggregator_frames_total')}) > 0",
                                            "{{reason}}")]),
        Panel("Values added", "Bps", [(rate("sumac_aggregator_job_added_bytes_total", JOB),
                                       "{{job_name}} {{job_number}}")]),
        Panel("Interfaces and their XDP mode", "none", [(f"sumac_aggregator_interface_info{{{HOST}}}", "")],
              "table"),
        Panel("Dropped on purpose", "pps", [(rate("sumac_aggregator_job_injected_drops_total", JOB),
                                             "{{job_name}} {{direction}}")],
              help="By `sumac-agg drop`."),
        Panel("Parameter hosts", "pps", [(rate("sumac_hosted_job_completed_total"),
                                          "{{instance}} job {{job_number}}")],
                                          help="Chunks of dynamic jobs."),
    ]),
    ("Hosts", [
        Panel("CPU", "none", [(rate("process_cpu_seconds_total"), "{{instance}}")], help="CPUs in use."),
        Panel("Packets dropped on a host", "pps", [
            (f"sum by (instance) ({rate('sumac_datapath_packets_dropped_total')})",
             "{{instance}} by the kernel"),
            (f"sum by (instance) ({rate('sumac_datapath_packets_malformed_total')})",
             "{{instance}} malformed"),
            (f"sum by (instance) ({rate('sumac_datapath_packets_undelivered_total')})",
             "{{instance}} of no job"),
            (f"sum by (instance) ({rate('sumac_datapath_packets_refused_total')})",
             "{{instance}} refused by the kernel"),
        ]),
        Panel("Frames in the host's XDP program", "pps",
              [(f"sum by (reason) ({rate('sumac_host_program_packets_total')}) > 0", "{{reason}}")]),
        Panel("Way of packets", "none", [(f"sumac_datapath_port_info{{{HOST}}}", "")], "table"),
        Panel("UMEM frames", "none", [(f"sum by (instance, state) (sumac_umem_frames{{{HOST}}})",
                                       "{{instance}} {{state}}")],
              help="Frames that are held and only grow are a leak."),
        Panel("Resident memory", "bytes", [(f"process_resident_memory_bytes{{{HOST}}}", "{{instance}}")]),
    ]),
    ("Control plane", [
        Panel("Jobs by state", "none", [(f"sumac_control_jobs{{{HOST}}}", "{{state}}")]),
        Panel("Denied and refused", "cps", [
            (rate("sumac_control_denied_total"), "{{instance}} {{reason}}"),
            (rate("sumac_control_joins_refused_total"), "{{instance}} join refused"),
        ]),
        Panel("Connections", "none", [
            (f"sumac_control_connections{{{HOST}}}", "{{instance}}"),
            (f"sumac_control_connections_unauthenticated{{{HOST}}}", "{{instance}} not authenticated"),
        ]),
    ]),
]


def variable(name: str, label: str, query: str) -> Json:
    """Returns a variable with the values of a label, of which all are selected at first."""
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]}, "options": [], "hide": 0, "regex": "",
        "skipUrlSync": False,
    }


def panels() -> list[Json]:
    """Returns all panels, row below row."""
    made: list[Json] = []
    y = 0
    for title, row in ROWS:
        made.append({"id": len(made) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                     "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}})
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            made.append(panel.json(len(made) + 1, x, y))
            x += panel.width
        y += HEIGHT
    return made


def dashboard() -> Json:
    instances = 'label_values({__name__=~"sumac_daemon_info|sumac_aggregator_info"}, instance)'
    return {
        "id": None, "uid": "sumac", "title": "Sumac",
        "description": "Jobs, loss, stragglers and slots of in-network aggregation.",
        "tags": ["sumac"], "schemaVersion": SCHEMA_VERSION, "version": 1, "editable": True, "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"}, "timezone": "", "weekStart": "", "fiscalYearStartMonth": 0,
        "liveNow": False,
        "links": [], "annotations": {"list": []},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
             "current": {}, "options": [],
             "hide": 0, "includeAll": False, "multi": False, "refresh": 1, "regex": "", "skipUrlSync": False},
            variable("instance", "Host", instances),
            variable("job", "Job", "label_values(sumac_job_workers, job_name)"),
        ]},
        "panels": panels(),
    }


def main() -> int:
    text = json.dumps(dashboard(), indent=2) + "\n"
    if sys.argv[1:] == ["--check"]:
        is_current = FILE.exists() and FILE.read_text() == text
        print("up to date" if is_current else f"{FILE.name} differs: run tools/monitoring/grafana/dashboard.py")
        return int(not is_current)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
