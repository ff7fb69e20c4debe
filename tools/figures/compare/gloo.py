#!/usr/bin/python3
"""Times Gloo's allreduce (torch.distributed), one rank per process:

  ip netns exec lab-w0 tools/figures/compare/gloo.py --rank 0 --world 4 --master 10.77.0.2 --interface net0
  --elements 1000000

Prints one line of JSON per rank. Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 3 PyTorch is
missing.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from typing import Any

import measure


def main() -> int:
    """Runs the command line; gives the exit code."""
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, required=True, help="this process's number, from 0")
    parser.add_argument("--world", type=int, required=True, help="number of processes")
    parser.add_argument("--master", required=True, help="rank 0's address")
    parser.add_argument("--port", type=int, default=29500, help="rank 0's port (default %(default)s)")
    parser.add_argument("--interface", required=True, help="the network interface to use")
    parser.add_argument("--timeout", type=float, default=120, help="seconds that joining or one sum may take")
    parser.add_argument("--pieces", type=int, default=1, help="sums in flight at a time, each of a piece")
    parser.add_argument("--groups", type=int, default=1, help="process groups that the pieces are summed in")
    measure.arguments(parser)
    options = parser.parse_args()
    try:
        import torch
        import torch.distributed as distributed
    except ImportError as error:
        print(f"gloo.py: {error}; apt-get install python3-torch", file=sys.stderr)
        return 3
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    torch.set_num_threads(1)
    try:
        right = run(options, torch, distributed)
    except RuntimeError as error:
        print(f"gloo.py: rank {options.rank}: {error}", file=sys.stderr)
        return 1
    return 0 if right else 1


def run(options: argparse.Namespace, torch: Any, distributed: Any) -> bool:
    """Joins the others and measures; whether all sums were right."""
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{options.master}:{options.port}",
        rank=options.rank,
        world_size=options.world,
        timeout=datetime.timedelta(seconds=options.timeout),
    )
    groups = [distributed.new_group() for _ in range(options.groups)] if options.groups > 1 else [None]

    def allreduce(buffer: Any) -> None:
        if options.pieces == 1:
            distributed.all_reduce(torch.from_numpy(buffer))
            return
        pieces = torch.from_numpy(buffer).split(options.elements // options.pieces)
        works = [
            distributed.all_reduce(piece, group=groups[number % len(groups)], async_op=True)
            for number, piece in enumerate(pieces)
        ]
        for work in works:
            work.wait()

    right = measure.measure(
        f"Gloo (PyTorch {torch.__version__})",
        options.rank,
        options.world,
        options,
        allreduce,
        distributed.barrier,
    )
    distributed.destroy_process_group()
    return right


if __name__ == "__main__":
    sys.exit(main())
