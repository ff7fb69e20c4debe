#!/usr/bin/python3
"""Compares backends of torch.distributed on this machine: sums of all sizes, and a step of DDP.

  tools/gpu/compare.py --device cuda        on the first GPU, with sumac, Gloo and NCCL
  tools/gpu/compare.py --device cpu         without a GPU: sumac and Gloo
  tools/gpu/compare.py --daemons 1          the ranks of one daemon, which sums in memory
  tools/gpu/compare.py --ranks 4            as many ranks, instead of two
  tools/gpu/compare.py --large              a sum of 1 GiB too
  tools/gpu/compare.py --json FILE          the medians as JSON too

Ranks have daemons on this machine's loopback, over UDP, and Gloo and NCCL use loopback as well; NCCL takes
the ranks for two hosts. Each number is the median of the slowest rank's times; of many sums it is that of
one. CPU is the whole machine's, for a run. Sums are checked. sumac+local reduces inside a host by NCCL: of
two GPUs with --daemons 1, else of each rank alone. nccl+plugin is NCCL with the library of userspace/nccl,
where NCCL_PLUGIN_DIR has it. Where a daemon has several ranks of a CPU, sumac+registered is the client
with tensors in registered memory, and sumac+shared with results in memory that all ranks of the daemon read.

Exit codes: 0 all ran, 1 a backend failed, 2 wrong usage, 3 a program is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "userspace" / "python"
sys.path.insert(0, str(PYTHON))

LIMIT = 600
"""Seconds that a backend may take."""
SIZES = (1 << 18, 1 << 22, 100_000_000)
"""Bytes of the sums."""
LARGE = 1 << 30
"""Bytes of the sum that is asked for."""
CLIENTS = ("sumac+registered", "sumac+shared")
"""Columns of the client without PyTorch, which have the single sums alone."""
SMALL = 1000
"""Elements of each of many sums."""


def parse(arguments: Optional[list[str]]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).split("\n\n", 1)[0], epilog=str(__doc__).split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="where the tensors are")
    parser.add_argument("--ranks", type=int, choices=(2, 4, 8), default=2, help="ranks")
    parser.add_argument("--daemons", type=int, choices=(1, 2), default=2, help="daemons of the ranks")
    parser.add_argument("--large", action="store_true", help="measure a sum of 1 GiB, its first time too")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="times that each case is measured")
    parser.add_argument("--sums", type=int, default=10_000, metavar="N", help="small sums submitted at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians")
    parser.add_argument("--rank-of", metavar="BACKEND", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs the command line; gives the exit code."""
    options = parse(arguments)
    if options.rank_of:
        run_rank(options)
        return 0
    from tests.lab import Lab, program

    if not (program("sumac") and program("sumac-agg")):
        print("compare.py: sumac and sumac-agg are not built: make build", file=sys.stderr)
        return 3
    lab = Lab(options.daemons)
    try:
        found = {backend: measure(options, backend, lab) for backend in backends(options)}
    finally:
        lab.stop()
    print(table(found))
    if options.json:
        report = {"device": options.device, "daemons": options.daemons, "runs": options.runs, **found}
        options.json.write_text(json.dumps(report, indent=2))
    return int(any("error" in outcome for outcome in found.values()))


def backends(options: argparse.Namespace) -> list[str]:
    """Returns the columns of the table."""
    if options.device == "cpu":
        return ["sumac", *(CLIENTS if options.ranks > options.daemons else []), "gloo"]
    plugin = ["nccl+plugin"] if os.environ.get("NCCL_PLUGIN_DIR") else []
    return ["sumac", "sumac+local", "gloo", "nccl", *plugin]


def measure(options: argparse.Namespace, backend: str, lab: Any) -> dict[str, Any]:
    """Returns the medians of a backend's cases in seconds, or its error."""
    print(f"measuring {backend} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="sumac-gpu-") as folder:
        ranks = []
        for rank in range(options.ranks):
            with open(f"{folder}/{rank}.log", "w") as log:
                ranks.append(subprocess.Popen(
                    [sys.executable, __file__, "--rank-of", backend, "--device", options.device,
                     "--runs", str(options.runs), "--sums", str(options.sums), "--ranks", str(options.ranks),
                     "--daemons", str(options.daemons),
                     *(["--large"] if options.large else [])],
                    stdout=subprocess.PIPE, stderr=log, text=True,
                    env=environment(
                        backend, rank, options.ranks,
                        lab.socket(rank * options.daemons // options.ranks), folder,
                    ),
                ))
        try:
            outputs = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
        except subprocess.TimeoutExpired:
            return {"error": f"no end after {LIMIT} s"}
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if any(process.returncode for process in ranks):
            logs = [Path(f"{folder}/{rank}.log").read_text()[-2000:] for rank in range(options.ranks)]
            print("\n".join(logs), file=sys.stderr)
            return {"error": next(filter(None, logs), "no message").strip().split("\n")[-1]}
    ranks_cases = [json.loads(output) for output in outputs]
    found: dict[str, Any] = {}
    for case, (_, busy) in ranks_cases[0].items():
        # A case has ended when its slowest rank has.
        found[case] = statistics.median(map(max, zip(*(cases[case][0] for cases in ranks_cases))))
        found[f"{case}: CPU"] = busy
    return found


def environment(backend: str, rank: int, world: int, socket: str, folder: str) -> dict[str, str]:
    """Returns the environment of a rank."""
    # The ranks of one daemon are one host, unless they have one GPU.
    host = rank if socket.endswith(f"{rank}.sock") or backend.startswith("nccl") else 0
    more = {"NCCL_HOSTID": f"host{host}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    if backend == "sumac+local":
        more["SUMAC_LOCAL"] = "nccl"
    if backend == "nccl+plugin":
        plugin = os.environ["NCCL_PLUGIN_DIR"]
        more |= {"NCCL_NET_PLUGIN": "sumac", "NCCL_COLLNET_ENABLE": "1", "NCCL_DEBUG": "INFO"}
        more["LD_LIBRARY_PATH"] = f"{plugin}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return {
        **os.environ, **more, "PYTHONPATH": str(PYTHON), "RANK": str(rank), "WORLD_SIZE": str(world),
        "SUMAC_SOCKET": socket, "GLOO_SOCKET_IFNAME": "lo", "INIT_FILE": f"{folder}/init",
        "OMP_NUM_THREADS": "1",
    }


def run_rank(options: argparse.Namespace) -> None:
    """Runs all cases as one rank, and prints their times."""
    if options.rank_of in CLIENTS:
        run_client(options)
        return
    import torch
    import torch.distributed as dist

    import sumac.torch  # noqa: F401 - registers the backend

    backend = options.rank_of.split("+")[0]
    rank = int(os.environ["RANK"])
    if options.device == "cuda":
        # NCCL has one rank on a GPU, but for those that it takes for two hosts.
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        backend, init_method=f"file://{os.environ['INIT_FILE']}", rank=rank, world_size=options.ranks
    )
    times: dict[str, tuple[list[float], float]] = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4, device=options.device)

        def act(tensor: torch.Tensor = tensor) -> None:
            tensor.fill_(float(rank + 1))
            dist.all_reduce(tensor)

        times[case_of(size)] = timed(act, options, dist.barrier)
        if not bool((tensor == options.ranks * (options.ranks + 1) / 2).all()):
            raise AssertionError(f"{backend}: a sum of {size} bytes is wrong")
    small = [torch.ones(SMALL, device=options.device) for _ in range(options.sums)]
    row = small[:1000]

    def at_once() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in small]:
            work.wait()

    def in_a_row() -> None:
        for tensor in row:
            dist.all_reduce(tensor)

    few = argparse.Namespace(**{**vars(options), "runs": min(options.runs, 3)})
    times[f"1 of {len(small):,} small sums at once"] = of_one(len(small), timed(at_once, few, dist.barrier))
    times[f"1 of {len(row):,} small sums in a row"] = of_one(len(row), timed(in_a_row, few, dist.barrier))
    times["DDP step, 17 MB of gradients"] = timed(training(options.device), options, dist.barrier)
    if options.large:
        tensor = torch.ones(LARGE // 4, device=options.device)
        every, busy = timed(lambda: dist.all_reduce(tensor), few, dist.barrier, warm=0)
        times["all_reduce of 1 GiB, first"] = every[:1], busy
        times["all_reduce of 1 GiB"] = every[1:] or every, busy
    dist.destroy_process_group()
    print(json.dumps(times))


def case_of(size: int) -> str:
    """Returns the name of a sum's row."""
    return f"all_reduce of {size:,} bytes"


def run_client(options: argparse.Namespace) -> None:
    """Runs the sums as one rank of the client, and prints their times."""
    import numpy as np

    import sumac

    rank = int(os.environ["RANK"])
    times: dict[str, tuple[list[float], float]] = {}
    local = options.ranks // options.daemons
    with sumac.Client(os.environ["SUMAC_SOCKET"]) as client:
        with client.open("compare", rank, options.ranks, local_world=local, timeout=LIMIT) as job:
            start = job.buffer(1, np.int32)
            for size in SIZES:
                values = job.buffer(size // 4)
                out = job.buffer(size // 4, shared=True) if options.rank_of == "sumac+shared" else values

                def act(values: np.ndarray = values, out: np.ndarray = out) -> None:
                    values.fill(rank + 1)
                    job.allreduce(values, None if out is values else out)

                times[case_of(size)] = timed(act, options, lambda: job.allreduce(start))
                if not (out == options.ranks * (options.ranks + 1) / 2).all():
                    raise AssertionError(f"{options.rank_of}: a sum of {size} bytes is wrong")
    print(json.dumps(times))


def training(device: str) -> Any:
    """Returns a step of DDP."""
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 1024).to(device)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def of_one(count: int, measured: tuple[list[float], float]) -> tuple[list[float], float]:
    """Returns what one of many took."""
    return [took / count for took in measured[0]], measured[1] / count


def busy_seconds() -> float:
    """Returns the time that this machine's CPUs were not idle."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def timed(
    act: Any, options: argparse.Namespace, barrier: Any, warm: int = 2
) -> tuple[list[float], float]:
    """Returns the times of runs that begin together, after some that are not measured, and the machine's busy
    seconds of a run."""
    found = []
    before = busy_seconds()
    for run in range(options.runs + warm):
        barrier()
        if run == warm:
            before = busy_seconds()
        started = time.perf_counter()
        act()
        if options.device == "cuda":
            import torch

            torch.cuda.synchronize()
        if run >= warm:
            found.append(time.perf_counter() - started)
    return found, (busy_seconds() - before) / options.runs


def table(found: dict[str, dict[str, Any]]) -> str:
    """Returns the medians in milliseconds, and sumac's share of the others."""
    cases = next((list(outcome) for outcome in found.values() if "error" not in outcome), [])
    lines = [f"{'milliseconds':38}" + "".join(f"{backend:>26}" for backend in found)]
    for case in cases:
        cells = []
        own = found["sumac"].get(case)
        for backend, outcome in found.items():
            value = outcome.get(case)
            missing = "failed" if "error" in outcome else "-"
            text = missing if value is None else f"{value * 1e3:.3f}"
            if backend != "sumac" and value is not None and own:
                text += f" ({value / own:.2f} x sumac)"
            cells.append(f"{text:>26}")
        lines.append(f"{case:38}" + "".join(cells))
    lines += [f"{backend}: {outcome['error']}" for backend, outcome in found.items() if "error" in outcome]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
