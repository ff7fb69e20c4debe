#!/usr/bin/python3
"""Times Open MPI's allreduce (mpi4py); mpi-run starts it on every rank.

Prints one line of JSON per rank. Exit codes: 0 all sums right, 1 wrong or failed, 2 wrong usage, 3 mpi4py is
missing.
"""

from __future__ import annotations

import argparse
import sys

import measure


def main() -> int:
    """Runs the command line; gives the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measure.arguments(parser)
    options = parser.parse_args()
    try:
        from mpi4py import MPI
    except ImportError as error:
        print(f"mpi.py: {error}; apt-get install openmpi-bin python3-mpi4py", file=sys.stderr)
        return 3
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    if options.out:
        options.out = options.out.with_name(f"{options.out.name}.{rank}")
    right = measure.measure(
        MPI.Get_library_version().split(",")[0].replace(" v", " "),
        rank,
        world.Get_size(),
        options,
        lambda buffer: world.Allreduce(MPI.IN_PLACE, buffer),
        world.Barrier,
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
