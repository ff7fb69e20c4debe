"""A rank of the tests of ``sumac.torch``: runs the cases that it reads from its input, and writes a line for
each.

    python3 -m tests.torch_ranks MODULE < CASES, with RANK, WORLD_SIZE, SUMAC_SOCKET and INIT_FILE
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import traceback
from typing import NamedTuple

import torch
import torch.distributed as dist

import sumac.torch  # noqa: F401 - registers the backend


class Ranks(NamedTuple):
    """The arguments of a case: this rank, and a group of Gloo with the same ranks, to compare with."""

    rank: int
    world: int
    gloo: dist.ProcessGroup


def main() -> None:
    """Runs cases of a module by name."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    init = f"file://{os.environ['INIT_FILE']}"
    cases = importlib.import_module(sys.argv[1])
    dist.init_process_group(
        getattr(cases, "BACKEND", "sumac"), init_method=init, rank=rank, world_size=world,
        timeout=datetime.timedelta(seconds=30),
    )
    ranks = Ranks(rank, world, dist.new_group(backend="gloo"))
    print(json.dumps({"case": "init", "error": None}), flush=True)
    for line in sys.stdin:
        error = None
        try:
            getattr(cases, line.strip())(ranks)
        except BaseException:  # noqa: BLE001 - the test reports it
            error = traceback.format_exc()
        print(json.dumps({"case": line.strip(), "error": error}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
