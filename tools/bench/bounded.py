"""The effect of a loss bound, as `sumac-figures exchange` and `convergence` measured it: plots, and their
section of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Optional

from results import Results
from tables import table

BOUNDED, EXACT, OTHER = ("#1b6ca8", "o"), ("#d1751f", "s"), ("#5a8f3c", "^")

TAILS = {"tail-256k": "256 KB", "tail-4m": "4 MB", "tail-4m-mbit": "4 MB at 100 Mbit/s"}
STRAGGLERS = "stragglers"
TRAININGS = {"convergence-digits": "digits", "convergence-breast-cancer": "breast cancer"}

HEAD = """
## Bounded loss

What MLT's loss bound p brings on the real programs in the lab: `sumac-figures exchange` and `sumac-figures convergence`. The two jobs of an
exchange, with p = 0 and p = 10 %, sum in turns over the same daemons, so read ratios between them.
"""


def ms(seconds: float) -> str:
    """A time in milliseconds."""
    return f"{seconds * 1e3:.1f} ms"


def percent(millionths: float) -> str:
    """A loss as it is given on the command line."""
    return f"{millionths / 1e4:g} %"


def library(run: dict[str, Any]) -> str:
    """A contender without its version."""
    return run["contender"].partition(" (")[0]


def build(report: dict[str, Any]) -> str:
    """Returns the profile with which Sumac was built."""
    return "debug build" if report["debug_build"] else "release build"


def tails(results: Results, pyplot: Any) -> Optional[Any]:
    """Median and 99th percentile against loss."""
    reports = {title: report for case, title in TAILS.items() if (report := results.case(case))}
    if not reports:
        return None
    figure, axes = pyplot.subplots(1, len(reports), figsize=(7.6, 2.9), squeeze=False)
    for axis, (title, report) in zip(axes[0], reports.items()):
        names = list(dict.fromkeys(map(library, report["runs"])))
        for name, style in zip(sorted(names, reverse=True), (BOUNDED, EXACT, OTHER)):
            runs = [run for run in report["runs"] if library(run) == name]
            losses = [percent(run["loss"]) for run in runs]
            axis.plot(losses, [run["tat_s"]["p99"] * 1e3 for run in runs], color=style[0], marker=style[1],
                      label=f"{name}, p99")
            axis.plot(losses, [run["tat_s"]["median"] * 1e3 for run in runs], color=style[0], linestyle="--",
                      linewidth=1, label="median")
        axis.set_yscale("log")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("loss per direction of every cable")
    axes[0][0].set_ylabel("milliseconds")
    axes[0][0].legend(fontsize=7, ncols=2)
    return figure


def stragglers(results: Results, pyplot: Any) -> Optional[Any]:
    """Bars of the median with the 99th percentile."""
    report = results.case(STRAGGLERS)
    if not report:
        return None
    figure, axis = pyplot.subplots(figsize=(5.2, 2.6))
    titles = {"none": "all alike", "slow": "one cable at\na tenth of the rate",
              "pauses": "one pauses 20 ms\nat random"}
    for shift, name, style in ((-0.2, "p = 0 %", EXACT), (0.2, "p = 10 %", BOUNDED)):
        runs = [run for run in report["runs"] if run["contender"] == name]
        medians = [run["tat_s"]["median"] for run in runs]
        upper = [run["tat_s"]["p99"] - run["tat_s"]["median"] for run in runs]
        places = [place + shift for place in range(len(runs))]
        axis.bar(places, medians, width=0.36, color=style[0], label=name, yerr=([0] * len(runs), upper),
                 ecolor="#333333", capsize=3)
        axis.set_xticks(range(len(runs)), [titles[run["straggler"]] for run in runs])
    axis.set_yscale("log")
    axis.set_ylabel("seconds, median\n(line: p99)")
    axis.grid(axis="x", visible=False)
    axis.legend(fontsize=8)
    return figure


def trainings(results: Results, pyplot: Any) -> Optional[Any]:
    """Accuracy against epochs."""
    reports = {title: report for case, title in TRAININGS.items() if (report := results.case(case))}
    if not reports:
        return None
    colors = dict(zip((0, 0.01, 0.1, 0.2, 0.3), ("#777777", "#5a8f3c", "#1b6ca8", "#d1751f", "#a83232")))
    figure, axes = pyplot.subplots(1, len(reports), figsize=(7.6, 3.1), squeeze=False)
    for axis, (title, report) in zip(axes[0], reports.items()):
        for run in report["runs"]:
            style = ":" if run["dropping"] == "random" else "-"
            label = f"p = {run['bound']:.0%}" if run["dropping"] != "random" else None
            epochs = range(1, len(run["accuracy"]) + 1)
            axis.plot(epochs, [accuracy * 100 for accuracy in run["accuracy"]], style,
                      color=colors.get(round(run["bound"], 4), "black"), linewidth=1, label=label)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("epoch (dotted: random dropping)")
    axes[0][0].set_ylabel("accuracy on the test data, %")
    axes[0][0].legend(fontsize=7)
    return figure


DRAW: dict[str, Callable[[Results, Any], Optional[Any]]] = {
    "mlt-tail": tails, "mlt-stragglers": stragglers, "mlt-fig18-convergence": trainings,
}


def figures(results: Results, pyplot: Any) -> dict[str, Optional[Any]]:
    """All plots, by the names of their files; none of what was not measured."""
    return {name: draw(results, pyplot) for name, draw in DRAW.items()}


def image(folder: Path, name: str, title: str) -> str:
    """A plot, where it was drawn."""
    return f"\n![{title}]({folder.name}/{name}.svg)\n" if (folder / f"{name}.svg").exists() else ""


def exchange(report: dict[str, Any], case: Callable[[dict[str, Any]], str]) -> str:
    """The runs of an exchange."""
    rows = []
    for run in report["runs"]:
        times, ratios = run["tat_s"], run["ratios"] or (0, 0)
        spent = "" if "Gloo" in run["contender"] else f"{run['spent']:.2%}"
        rows.append((case(run), library(run), len(run["times_s"]), ms(times["median"]), ms(times["p99"]),
                     ms(times["max"]),
                     f"{ratios[0]:.2f}", f"{ratios[1]:.2f}", spent))
    head = ("case", "", "sums", "median", "p99", "longest", "median to the first case",
            "p99 to the first case", "left out")
    return table(head, rows)


def page(results: Results, folder: Path) -> str:
    """The section; nothing where nothing was measured."""
    text, goals = "", []
    for case, title in TAILS.items():
        if report := results.case(case):
            text += f"\n### The tail of {title} under loss\n\n4 workers, {build(report)}; `tools/bench.sh {case}`.\n\n"
            text += exchange(report, lambda run: f"{percent(run['loss'])} loss")
            worst = [
                run for run in report["runs"] if run["contender"].startswith("p =") and run["loss"] == 10_000
            ]
            for run in worst:
                reached = run["ratios"][1] <= 1.2
                goals.append((f"{title}, {library(run)}: p99 at 1 % loss", "1.2 x of no loss",
                              f"{run['ratios'][1]:.2f} x",
                              "reached" if reached else "**not reached**"))
    text += image(folder, "mlt-tail", "Median and 99th percentile against loss") if text else ""
    if report := results.case(STRAGGLERS):
        rate = f"{report['rate'] // 10**6} Mbit/s" if report["rate"] else "no rate limit"
        text += f"\n### A straggler\n\n{report['elements']:,} elements, 4 workers, {rate}, {build(report)}; `tools/bench.sh {STRAGGLERS}`.\n\n"
        text += exchange(report, lambda run: run["straggler"])
        text += image(folder, "mlt-stragglers", "Time beside a straggler")
    rows = []
    for case, title in TRAININGS.items():
        for run in (results.case(case) or {}).get("runs", []):
            rows.append((title, f"{run['bound']:.0%}", run["dropping"], f"{run['lost']:.1%}",
                         f"{run['frames_lost'] / max(run['frames'], 1):.1%}",
                         f"{max(run['accuracy']):.1%}", f"{run['accuracy'][-1]:.1%}", run["converged"] or "-",
                         "yes" if run["equal"] else "no"))
    if rows:
        text += "\n### Convergence within a bound (figures 3, 4 and 18 of MLT)\n\n4 workers, direct mode with block owners; `tools/bench.sh bounded`.\n\n"
        head = ("data", "p", "dropping", "values that did not arrive", "frames lost by the cables",
                "best accuracy", "last", "epochs to within 1 % of the best without loss", "equal replicas")
        text += table(head, rows)
        text += image(folder, "mlt-fig18-convergence", "Accuracy against epochs")
    if not text:
        return ""
    return HEAD + ("\n" + table(("case", "to reach", "measured", ""), goals) if goals else "") + text
