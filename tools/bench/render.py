"""Renders docs/results.md from the JSON of tools/bench.sh: `render.py FOLDER > docs/results.md`.

Says nothing that is not in the files, and leaves out what was not measured.
"""

import json
import os
import platform
import sys

# Bytes of one element on the wire, and of what surrounds a chunk up to Ethernet's header, which is what tbf counts.
ELEMENT = 4
HEADERS = 14 + 20 + 8 + 56

HEAD = """# Results

Measured by `make bench`, which writes this page. {machine}
Machines are shared and noisy: read ratios, and minima beside medians. Veths in namespaces on one machine are not NICs: every frame of every
worker, cable and aggregator is moved by the same {cores} cores. Sumac's path is driver XDP with AF_XDP in copy mode, which is what a veth offers.
"""


def load(folder, name):
    path = os.path.join(folder, name + ".json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def seconds(value):
    return f"{value * 1000:.2f} ms" if value < 0.1 else f"{value:.3f} s"


def programs(folder):
    aggregator, host = load(folder, "aggregator"), load(folder, "host")
    if aggregator is None or host is None:
        return ""
    text = "\n## The XDP programs\n\nNanoseconds per frame by the kernel's own test run (`sumac-agg bench`, `sumac bench-xdp`), "
    text += "all checks and UDP checksums on. With 1 worker every frame completes its slot and carries the sum away; with 32 nearly none does.\n\n"
    rows = [
        (f"aggregator, {row['workers']} workers", row["elements"], f"{row['ns_per_frame']:.0f}")
        for row in aggregator
    ]
    for row in host["frames"] if isinstance(host, dict) else host:
        rows.append((f"host, {row['frame']}", row.get("elements") or "", f"{row['ns_per_frame']:.0f}"))
    return text + table(("program", "elements", "ns per frame"), rows)


def ideal(elements, chunk, rate):
    """Seconds that a cable needs for one worker's contributions, headers included."""
    chunks = -(-elements // chunk)
    return (elements * ELEMENT + chunks * HEADERS) * 8 / rate


def comparison(folder, name, title, remark=""):
    data = load(folder, name)
    if data is None:
        return ""
    lab = data["lab"]
    text = f"\n## {title}\n\n"
    text += f"{lab['workers']} workers, {data['elements']:,} float32 elements each, MTU {lab['mtu']}, "
    text += f"{data['iterations']} allreduces after a warm-up. {remark}\n\n"
    rate = lab.get("rate")
    rows = []
    for row in data["rows"]:
        if row["outcome"] != "measured":
            rows.append((row["library"], row["path"], row.get("error") or row.get("install"), "", "", "", "", ""))
            continue
        times, cpu = row["tat_s"], row["cpu_s"]
        share = ""
        if rate and row["library"].startswith("Sumac"):
            share = f"{ideal(data['elements'], 256, rate) / times['median']:.1%}"
        rows.append((
            row["library"], row["path"], seconds(times["median"]), f"{seconds(times['min'])} to {seconds(times['max'])}",
            f"{row['ratio']:.2f}" if row["ratio"] else "", f"{cpu['user']:.2f} + {cpu['system']:.2f}",
            f"{row['machine_cpu_s']:.2f}", share,
        ))
    head = ("library", "path", "median", "range", "to Sumac XDP", "CPU s, processes", "CPU s, machine", "of the link")
    return text + table(head, rows)


def losses(folder):
    runs = [("none", load(folder, "mbit100"))]
    runs += [(rate + " %", load(folder, "loss" + rate)) for rate in ("0.01", "0.1", "1")]
    if any(run is None for _, run in runs):
        return ""
    text = "\n## Loss\n\n100 Mbit/s, 2,500,000 elements, loss in every direction of every cable; median time relative to none, and the slowest run's.\n\n"
    names = [row["library"] for row in runs[0][1]["rows"]]
    base = {row["library"]: row["tat_s"]["median"] for row in runs[0][1]["rows"] if row["outcome"] == "measured"}
    rows = []
    for name in names:
        cells = [name]
        for _, run in runs:
            row = next(row for row in run["rows"] if row["library"] == name)
            if row["outcome"] != "measured" or name not in base:
                cells.append("failed")
                continue
            times = row["tat_s"]
            cells.append(f"{times['median'] / base[name]:.3f} ({times['max'] / base[name]:.3f})")
        rows.append(cells)
    return text + table(["library"] + [name for name, _ in runs], rows)


def main():
    folder = sys.argv[1]
    machine = f"Last run: Linux {platform.release()}, {os.cpu_count()} cores, {platform.machine()}."
    parts = [
        HEAD.format(machine=machine, cores=os.cpu_count()),
        programs(folder),
        comparison(folder, "straight", "No rate limit", "Straight veths without offloads: every library's frames are of the MTU's size. Bound by the cores."),
        comparison(folder, "chunk352", "No rate limit, chunks of 352 elements", "The most that fits MTU 1500. What a frame costs does not depend on its length, so larger chunks pay."),
        comparison(folder, "super", "No rate limit, TCP in 64 KiB super-frames", "The same with TSO, GSO and GRO, which veths hand on without ever cutting them: no network does, but it is what TCP gets between containers of one machine."),
        comparison(folder, "mbit100", "100 Mbit/s", "Bound by the links: `of the link` is the time that a cable needs for elements and headers, by the time taken; more than all of it, because an idle tbf lets 256 KiB pass at once."),
        comparison(folder, "gbit1", "1 Gbit/s", "The cores cannot forward eight cables of 1 Gbit/s in frames of 1500 bytes: bound by them, not by the links."),
        comparison(folder, "small", "256 KiB", "Straight veths."),
        losses(folder),
    ]
    sys.stdout.write("".join(part for part in parts if part))


main()
