"""Dynamic jobs in the lab (`tools/bench.sh dynamic`): their section of the page."""

from __future__ import annotations

from typing import Any, Optional

from results import Results
from tables import table

CASES = {
    "dyn4-static": "4 workers, static, 64 slots, the same scale",
    "dyn4": "4 workers, dynamic, 1 parameter host, 1024 slots",
    "dyn4-s256": "the same with 256 slots",
    "dyn4-s64": "the same with 64 slots",
    "dyn4-co": "the parameter host on worker 0",
    "dyn4-none": "no aggregator",
    "dyn4-loss0.1": "0.1 % loss each way of every cable",
    "dyn4-loss1": "1 % loss",
    "dyn4-free": "no congestion control",
    "dyn6-two": "6 workers, 2 racks of 2 and 2 beside the parameter host (the paper's figure 9)",
    "dyn6-one": "6 workers at one aggregator",
    "dyn6-none": "6 workers, no aggregator",
}
"""The description of each case, by name."""

HEAD = """
## The dynamic mode in the lab

2.5 million float32 over cables of 100 Mbit/s that mark congestion above 64 KB (`sumac-lab run --mode dynamic`, all XDP, every element of every
worker checked). *Into the hosts*: what all parameter hosts took in, as multiples of the tensors' bytes in packets; a worker that is one takes its
own without a cable. A parameter host on worker 0 sends its results by the cable that has worker 0's contributions too: half of the link is all there is. Without an aggregator
the contributions of four (six) workers meet on one cable: a quarter (a sixth). A chunk takes ten directions of cables here, so 0.1 % loss on each is about 1 % for a chunk, and
each loss halves a window, as in the paper: windows are small then, and how fast they go round depends on how soon two cores give everybody a turn. Beside other work 0.1 % took up to
0.95 s and 1 % up to 2.7 s. `tools/bench.sh dynamic` makes them again.

Shares, on cables of 50 Mbit/s (`cargo test -p sumac-tests --test e2e -- dynamic::congestion coexistence --nocapture` prints them; two runs on a quiet machine): of two jobs one had 4,770 results while the other had 4,642, then
4,642 and 3,799. While a job had 9.6 MB on the cables, a Reno stream from its first worker had 7.5 and 8.2 MB, and a CUBIC stream 5.5 and 5.9 MB. How often iperf3 has its turn counts as well: with both cores kept busy Reno
once had 16.4 MB, and once 3.3. A job is marked on any cable of its workers, a stream on those of its own way. Two jobs whose parameter host takes everything in without an aggregator sent 4 and 6 of a hundred chunks again, and without
congestion control 65 and 75.

A direct job beside the same streams (debug build, other builds beside it): while it had 9.6 MB, Reno had 7.8 MB and CUBIC 7.5 MB. Before direct jobs reacted to marks, and took the round trip from
acknowledgements that come after a packet was given up, Reno had 0.9 MB. **A static job leaves TCP next to
nothing** (0.2 MB beside 9.6): its pool is always in flight, as in the paper. Give it a queue of its own (`sumac qos show`), fewer `slots`, or `congestion_control`: with that (debug build, six runs beside
other builds), while it had 9.6 MB, Reno had 8.3 to 8.5 MB in three runs and 3.5 to 5.0 on a busier machine, CUBIC 7.3 to 7.6 MB and 5.2 to 6.9. Alone it fills the link as without (4 workers, 4 MB at
100 Mbit/s: 0.330 s, and 0.332).
"""

# Of the build that measured docs/results: today's packets have 64.
HEADER = 56

TITLES = ("case", "seconds", "of the link", "collisions", "sent again", "marked on cables",
          "dropped by queues", "into the hosts")


def packets_bytes(report: dict[str, Any]) -> int:
    """Bytes of one worker's tensors of a whole run in UDP payloads: 32-bit words, and a header before each
    packet's."""
    elements, chunk = report["elements"], report["chunk"]
    # The report counts the whole job, and there is one allreduce before those that are measured.
    return (report["iterations"] + 1) * (elements * 4 + -(-elements // chunk) * HEADER)


def into_hosts(report: dict[str, Any]) -> Optional[float]:
    """Returns the number of times that the tensors came into the parameter hosts."""
    dynamic = report.get("dynamic")
    if dynamic is None:
        return None
    return sum(host["bytes_in"] for host in dynamic["parameter_hosts"]) / packets_bytes(report)


def row(what: str, report: dict[str, Any]) -> tuple[str, ...]:
    """One case's line of the table."""
    dynamic, injected = report.get("dynamic"), report["injected"]
    times = into_hosts(report)
    both = {key: injected["up"][key] + injected["down"][key] for key in ("marked", "overflowed")}
    return (
        what,
        f"{report['tat_s']['median']:.3f}",
        f"{report['link_efficiency'] * 100:.0f} %",
        f"{dynamic['collisions']}" if dynamic else "",
        f"{report['retransmits']}",
        f"{both['marked']}",
        f"{both['overflowed']}",
        f"{times:.2f}" if times is not None else "",
    )


def page(results: Results) -> str:
    """The section; empty without cases."""
    reports = [(what, results.case(name)) for name, what in CASES.items()]
    rows = [row(what, report) for what, report in reports if report is not None]
    return HEAD + "\n" + table(TITLES, rows) if rows else ""
