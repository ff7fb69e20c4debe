"""The project's goals for speed, and what was reached of each, computed from the measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional

from results import Results, present


@dataclass(frozen=True)
class Reached:
    """A number beside its goal."""

    told: str
    good: bool


@dataclass(frozen=True)
class Goal:
    """One line of the table."""

    what: str
    goal: str
    measure: Callable[[Results], Optional[Reached]]
    # The words of `tools/bench.sh` that measure it.
    cases: str
    # What bounds it where it is not reached.
    bound: str = ""


def at_least(value: Optional[float], goal: float, form: str = "{:.2f} x") -> Optional[Reached]:
    """A number that should not be smaller."""
    return None if value is None else Reached(form.format(value), value >= goal)


def at_most(value: Optional[float], goal: float, form: str) -> Optional[Reached]:
    """A number that should not be larger."""
    return None if value is None else Reached(form.format(value), value <= goal)


def ahead(case: str) -> Callable[[Results], Optional[Reached]]:
    """Sumac before both others, in time and in CPU seconds."""

    def measure(results: Results) -> Optional[Reached]:
        others = ("Gloo", "Open MPI")
        times = present(results.ratio((case, other), (case, "Sumac")) for other in others)
        cpu = results.cpu(case, "Sumac")
        cpus = present(results.cpu(case, other) for other in others)
        if len(times) < 2 or cpu is None:
            return None
        told = "time {:.2f} x Gloo's speed, {:.2f} x Open MPI's; ".format(*times)
        told += "CPU {:.2f} s beside {:.2f} and {:.2f}".format(cpu, *cpus)
        return Reached(told, min(times) > 1 and cpu < min(cpus))

    return measure


def faster(case: str, other: str, goal: float) -> Callable[[Results], Optional[Reached]]:
    """Sumac so many times as fast as another library in the same lab."""
    return lambda results: at_least(results.ratio((case, other), (case, "Sumac")), goal)


def faster_udp(case: str, goal: float) -> Callable[[Results], Optional[Reached]]:
    """Sumac over UDP so many times as fast as Gloo."""
    return lambda results: at_least(results.ratio((case, "Gloo"), (case, "Sumac UDP")), goal)


def own_faster(case: str, other: str, goal: float) -> Callable[[Results], Optional[Reached]]:
    """The same of the faster backend."""

    def measure(results: Results) -> Optional[Reached]:
        own, others = results.own(case), results.time(case, other)
        return at_least(others / own if own and others else None, goal)

    return measure


def cpu_below(*cases: str) -> Callable[[Results], Optional[Reached]]:
    """The machine's CPU seconds for each element and worker beside Gloo's, of the better backend in each
    case."""

    def measure(results: Results) -> Optional[Reached]:
        ratios = {}
        for case in cases:
            own = min(present(results.cpu(case, library) for library in ("Sumac", "Sumac UDP")), default=None)
            others = results.cpu(case, "Gloo")
            if own is not None and others:
                ratios[case] = own / others
        if not ratios:
            return None
        told = ", ".join(f"{case} {ratio:.2f} x" for case, ratio in ratios.items())
        return Reached(told, max(ratios.values()) < 1)

    return measure


def short(results: Results) -> Optional[Reached]:
    """256 KB over MTU-sized frames with GRO, in the faster backend, beside both others."""
    own, gloo, mpi = results.own("small"), *(results.time("small", library) for library in ("Gloo", "Open MPI"))
    if own is None or gloo is None or mpi is None:
        return None
    return Reached(f"{gloo / own:.2f} x Gloo, {mpi / own:.2f} x Open MPI", gloo / own >= 3 and mpi / own >= 2)


def short_loss(results: Results) -> Optional[Reached]:
    """The p99 with loss by the p99 without, of each backend."""
    ratios = {}
    for library in ("Sumac", "Sumac UDP"):
        lossy, clean = results.time("small-loss1", library, "p99"), results.time("small-loss0", library, "p99")
        if lossy and clean:
            ratios[library] = lossy / clean
    if not ratios:
        return None
    told = ", ".join(f"{library} {ratio:.2f} x" for library, ratio in ratios.items())
    return Reached(told, max(ratios.values()) <= 1.5)


def links_full(results: Results) -> Optional[Reached]:
    """The worst of all numbers of workers."""
    counts = {count: results.efficiency(f"mbit{count}") for count in (2, 4, 8, 16)}
    measured = {count: value for count, value in counts.items() if value is not None}
    if not measured:
        return None
    told = ", ".join(f"{value:.1%} ({count})" for count, value in measured.items())
    return Reached(told, min(measured.values()) >= 0.98)


def latency(results: Results) -> Optional[Reached]:
    """The median of 256 KB beside both others' in the faster of their two ways to send."""
    own, gloo, mpi = (
        min(present(results.time(case, library) for case in ("small", "small-super")), default=None)
        for library in ("Sumac", "Gloo", "Open MPI")
    )
    if own is None or gloo is None or mpi is None:
        return None
    told = f"{own * 1e3:.2f} ms; Gloo {gloo * 1e3:.2f}, Open MPI {mpi * 1e3:.2f}"
    return Reached(told, own < mpi and own < gloo / 4)


def tiny(results: Results) -> Optional[Reached]:
    """The median of 4 KB beside Gloo's."""
    own, gloo = results.time("tiny", "Sumac"), results.time("tiny", "Gloo")
    if own is None or gloo is None:
        return None
    told = f"{own * 1e6:.0f} us; Gloo {gloo * 1e6:.0f}"
    polled = results.time("tiny-poll", "Sumac")
    if polled is not None:
        told += f"; {polled * 1e6:.0f} us with trainers that poll"
        own = min(own, polled)
    return Reached(told, own <= gloo / 4)


def inflation(case: str, goal: float) -> Callable[[Results], Optional[Reached]]:
    """The time with loss by the time without."""
    return lambda results: at_most(results.ratio((case, "Sumac"), ("mbit4", "Sumac")), goal, "{:.3f} x")


def tail(results: Results) -> Optional[Reached]:
    """The slowest one in a hundred."""
    times = {library: results.time("small-loss1", library, "p99") for library in ("Sumac", "Gloo", "Open MPI")}
    if times["Sumac"] is None:
        return None
    told = ", ".join(f"{name} {time * 1e3:.1f} ms" for name, time in times.items() if time is not None)
    return Reached(told, times["Sumac"] < 0.010)


def stealing(results: Results) -> Optional[Reached]:
    """The tail of an allreduce under loss, with and without work stealing."""
    tails = [results.tail(case, "Sumac") for case in ("loss1", "loss1-fixed")]
    fixed = results.ratio(("loss1-fixed", "Sumac"), ("mbit4", "Sumac"))
    if tails[0] is None or tails[1] is None or fixed is None:
        return None
    told = f"{tails[0] * 1e3:.0f} ms with, {tails[1] * 1e3:.0f} ms without, where the time is {fixed:.3f} x"
    return Reached(told, tails[0] <= tails[1])


def converting(results: Results) -> Optional[Reached]:
    """The converting pass from and to memory, beside copies of the same bytes."""
    rates = (results.case("convert") or {}).get("f32")
    if not rates:
        return None
    shares = {
        "encode": rates["encode"] / rates["copy out"],
        "encode with look-ahead": rates["encode and look ahead"] / rates["copy out"],
        "decode": rates["decode"] / rates["copy back"],
    }
    told = ", ".join(f"{step} {share:.0%}" for step, share in shares.items())
    return Reached(told, min(shares.values()) >= 0.8)


def program(results: Results) -> Optional[Reached]:
    """Nanoseconds per frame where no frame completes its slot, and where every fourth does."""
    rows = {row["workers"]: row for row in results.case("aggregator") or [] if row["elements"] == 256}
    if not {4, 32} <= rows.keys():
        return None
    adding, mixed = rows[32]["ns_per_frame"], rows[4]["ns_per_frame"]
    return Reached(f"{adding:.0f} ns adding, {mixed:.0f} ns with every fourth one completing", adding < 150)


CPU_CASES = ("udp4", "udp8", "udp4-loopback", "n4-1500", "n4-9000", "gbit8-super", "small")

# What bounds a number, where several goals share it. Each was measured: see docs/results/history.md.
CPU = "CPU: both cores are busy throughout"
PER_FRAME = "the kernel's cost of a frame: copy mode allocates and copies an skb for each, one frame a packet"
BRIDGE = "the bridge of the one-arm topology, which copies each result for each worker"
ROUND_TRIPS = "two round trips, of exponents and of values, of 0.5 ms each with 4 workers on 2 busy cores"
SCHEDULING = "CPU: a recovery's query, answer and data each wait for one of 2 cores; the simulator, which has no such wait, is within it"

GOALS = [
    Goal("4 workers, no rate limit, MTU 1500", "2 x as fast as Gloo with 1500-byte frames",
         faster("n4-1500", "Gloo", 2), "n4-1500", PER_FRAME),
    Goal("the same, TCP with GRO", "(beside)", faster("n4-1500-gro", "Gloo", 2), "n4-1500-gro"),
    *(
        Goal(
            f"{workers} workers, no rate limit, frames of {mtu} bytes",
            "ahead of Gloo and Open MPI with 64 KB super-frames, in time and in CPU seconds",
            ahead(f"n{workers}-{mtu}"),
            f"n{workers}-{mtu}",
            BRIDGE if mtu == 9000 else PER_FRAME,
        )
        for mtu in (3506, 9000)
        for workers in (4, 8)
    ),
    Goal("2, 4, 8, 16 workers at 100 Mbit/s", "98 % of the goodput that the header allows, at every count",
         links_full, "mbit", CPU),
    Goal("4 workers at 1 Gbit/s", "1.4 x Gloo with super-frames", faster("gbit4-super", "Gloo", 1.4),
         "gbit4-super", CPU),
    Goal("8 workers at 1 Gbit/s", "1.6 x Gloo with super-frames", faster("gbit8-super", "Gloo", 1.6),
         "gbit8-super", PER_FRAME),
    Goal("4 workers at 1 Gbit/s, 1500-byte frames", "2 x Gloo", faster("gbit4-1500", "Gloo", 2), "gbit4-1500",
         PER_FRAME),
    Goal("8 workers at 1 Gbit/s, 1500-byte frames", "2 x Gloo", faster("gbit8-1500", "Gloo", 2), "gbit8-1500",
         PER_FRAME),
    Goal("256 KB, 4 workers, no rate limit", "median below Open MPI's and a quarter of Gloo's", latency,
         "small small-super", ROUND_TRIPS),
    Goal("UDP, 4 workers, no rate limit, MTU 1500", "1.3 x Gloo with super-frames", faster_udp("udp4", 1.3),
         "udp4", CPU + "; 60 % of a daemon's time and 79 % of the aggregator's is the kernel's"),
    Goal("UDP, 8 workers, the same", "Gloo with super-frames", faster_udp("udp8", 1.0), "udp8", CPU),
    Goal("UDP on the loopback interface, 4 workers", "Gloo there", faster_udp("udp4-loopback", 1.0),
         "udp4-loopback", CPU),
    Goal("UDP, 4 hosts of 2 ranks, no rate limit, MTU 1500", "2 x Gloo with super-frames",
         faster_udp("ranks4x2-udp", 2.0), "ranks4x2-udp", CPU),
    Goal("AF_XDP, 2 hosts of 4 ranks at 1 Gbit/s", "1.7 x Gloo with super-frames",
         own_faster("ranks2x4-gbit", "Gloo", 1.7), "ranks2x4-gbit", CPU),
    Goal("AF_XDP or UDP, 4 workers, frames of 9000 bytes", "1.4 x Gloo with super-frames",
         own_faster("n4-9000", "Gloo", 1.4), "n4-9000", BRIDGE),
    Goal("AF_XDP or UDP, 8 workers at 1 Gbit/s", "1.6 x Gloo with super-frames",
         own_faster("gbit8-super", "Gloo", 1.6), "gbit8-super", CPU),
    Goal("AF_XDP or UDP, 256 KB, 4 workers, MTU-sized frames", "3 x Gloo, 2 x Open MPI", short, "small",
         ROUND_TRIPS),
    Goal("256 KB at 1 % loss", "p99 within 1.5 of no loss", short_loss, "small-loss0 small-loss1",
         SCHEDULING),
    Goal("CPU seconds of the machine", "below Gloo's in each case", cpu_below(*CPU_CASES),
         " ".join(CPU_CASES), "on loopback neither side has a cost of frames; with 9000 bytes the bridge, as above"),
    Goal("4 KB (1,024 elements), 2 workers, no rate limit", "median a quarter of Gloo's", tiny,
         "tiny tiny-poll", "the frames' way through NAPI threads, cables and programs, twice: exponents, then values"),
    Goal("0.01 % loss per direction, 100 Mbit/s", "within 1.01 of no loss", inflation("loss0.01", 1.01),
         "mbit4 loss0.01"),
    Goal("0.1 % loss", "within 1.03", inflation("loss0.1", 1.03), "mbit4 loss0.1"),
    Goal("1 % loss", "within 1.10", inflation("loss1", 1.10), "mbit4 loss1"),
    Goal("1 % loss: from 95 % of the frames to the end", "(work stealing, beside fixed slots)", stealing,
         "mbit4 loss1 loss1-fixed"),
    Goal("256 KB at 1 % loss", "p99 under 10 ms", tail, "small-loss1", SCHEDULING),
    Goal("converting float32 from and to memory", "80 % of memcpy's bandwidth", converting, "convert",
         "looking ahead reads a second chunk for each that is converted"),
    Goal("aggregator's program, 256 elements, all checks", "under 150 ns per frame", program, "programs"),
]
