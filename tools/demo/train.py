#!/usr/bin/python3
"""Trains a small network on scanned digits, data-parallel, with every gradient summed through Sumac.

One process per worker:

  train.py --rank 0 --world 4 --socket /run/sumac/sumac.sock --job digits --secret-file secret --out
  rank0.json

The same in one process, for comparison: with the same integers (the same bits come out), or with plain
floats:

  train.py --single --world 4
  train.py --plain

Exit codes: 0 trained, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import os

# More threads would add up in another order. Must be said before numpy is loaded.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Optional

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "userspace" / "python")]

import digits
import fixedpoint
import sumac
from gradients import FixedPoint, InNetwork, Plain, Source
from network import Network


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs the command line; gives the exit code."""
    options = parse(arguments)
    try:
        result = run(options)
    except (sumac.SumacError, fixedpoint.Saturated, OSError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    print(f"weights sha256 {result['weights_sha256']}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def parse(arguments: Optional[list[str]]) -> argparse.Namespace:
    """Reads the command line."""
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("who adds up")
    where.add_argument(
        "--single", action="store_true", help="this process alone, with the integers of --world workers"
    )
    where.add_argument("--plain", action="store_true", help="this process alone, with floats")
    where.add_argument("--rank", type=int, help="this worker's number, from 0")
    where.add_argument("--world", type=int, default=4, help="number of workers (default %(default)s)")
    where.add_argument("--socket", default="/run/sumac/sumac.sock", help="the daemon's (default %(default)s)")
    where.add_argument("--job", default="digits", help="the job's name (default %(default)s)")
    where.add_argument(
        "--secret-file", type=Path, help="the join token, or the job's secret; the daemon's own unless given"
    )
    where.add_argument(
        "--scale",
        type=float,
        help="floats times this are added as integers; block floating point unless given",
    )
    where.add_argument(
        "--elements", type=int, default=352, help="of a packet, which share a block (default %(default)s)"
    )
    where.add_argument(
        "--mode", default="static", choices=("static", "direct"), help="of the job (default %(default)s)"
    )
    where.add_argument(
        "--loss-bound",
        type=float,
        default=0,
        help="the fraction of its gradients that a worker may miss; packets then say whether they are important",
    )
    where.add_argument("--timeout", type=float, default=60, help="seconds that joining or one sum may take")
    how = parser.add_argument_group("how to train")
    how.add_argument("--data", default="digits", choices=digits.DATA, help="data set (default %(default)s)")
    how.add_argument("--epochs", type=int, default=20, help="passes over the images (default %(default)s)")
    how.add_argument(
        "--batch", type=int, default=128, help="images of all workers in a step (default %(default)s)"
    )
    how.add_argument("--hidden", type=int, nargs="*", default=[256, 128], help="widths of the hidden layers")
    how.add_argument("--rate", type=float, default=0.05, help="learning rate (default %(default)s)")
    how.add_argument("--momentum", type=float, default=0.9, help="of the descent (default %(default)s)")
    how.add_argument(
        "--seed", type=int, default=1, help="of split, order and first weights (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="write the result there as JSON")
    options = parser.parse_args(arguments)
    check(parser, options)
    return options


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends with a usage error where options contradict each other."""
    if options.single and options.plain:
        parser.error("--single and --plain are two different trainings")
    if not (options.single or options.plain) and options.rank is None:
        parser.error("say --rank R for a worker, or --single or --plain for one process")
    if options.rank is not None and not 0 <= options.rank < options.world:
        parser.error(f"--rank {options.rank} is not one of 0 to {options.world - 1}")
    if min([options.world, options.epochs, *options.hidden]) < 1 or options.batch < options.world:
        parser.error("--world, --epochs and --hidden are at least 1, and --batch at least --world")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Trains as the options say; the result goes into --out."""
    data = digits.load(options.seed, options.data)
    classes = int(data.train.labels.max()) + 1
    network = Network([data.train.pixels.shape[1], *options.hidden, classes], options.seed)
    if options.plain:
        return train(options, data, network, Plain(network))
    if options.single:
        arithmetic = fixedpoint.Arithmetic(options.world, options.elements, options.scale)
        return train(options, data, network, FixedPoint(network, options.world, arithmetic))
    secret = options.secret_file.read_text().rstrip() if options.secret_file else None
    with sumac.Client(options.socket) as client:
        scale = "block" if options.scale is None else options.scale
        # Values of a direct job travel as they are.
        how = {"mode": "direct"} if options.mode == "direct" else {"scale": scale}
        job = client.open(
            options.job, options.rank, options.world, secret=secret, elements=options.elements,
            timeout=options.timeout,
            **how,
        )
        bound = {"loss_bound": options.loss_bound, "importance": "magnitude"} if options.loss_bound else {}
        with job:
            result = train(options, data, network, InNetwork(network, job, options.timeout, **bound))
            # Before the job is closed: its counters go with it.
            return result | {"backend": client.backend, "opened": job.opened, "job": job.stats()}


def train(
    options: argparse.Namespace, data: digits.Digits, network: Network, source: Source
) -> dict[str, Any]:
    """All epochs, with a line for each where somebody looks: in one process, or on rank 0."""
    epochs = []
    for epoch in range(1, options.epochs + 1):
        begin = time.perf_counter()
        source.durations.clear()
        source.lost.clear()
        for batch in digits.batches(len(data.train.labels), options.batch, options.seed, epoch):
            network.descend(source.gradients(network, data.train, batch), options.rate, options.momentum)
        seconds = time.perf_counter() - begin
        entry = {
            "epoch": epoch,
            "loss": network.loss(data.train),
            "accuracy": network.accuracy(data.test),
            "seconds": seconds,
            "allreduce_s": spread(source.durations),
            "lost": statistics.fmean(source.lost) if source.lost else None,
        }
        epochs.append(entry)
        if not options.rank:
            print(line(entry, options.epochs), flush=True)
    return {
        "world": 1 if options.plain else options.world,
        "rank": options.rank,
        "elements": network.sizes,
        "epochs": epochs,
        "accuracy": epochs[-1]["accuracy"],
        "weights_sha256": network.sha256(),
    }


def spread(durations: list[float]) -> Optional[dict[str, float]]:
    """Returns the durations of an epoch's operations, if there were any."""
    if not durations:
        return None
    return {"count": len(durations), "median": statistics.median(durations), "max": max(durations)}


def line(entry: dict[str, Any], epochs: int) -> str:
    """Returns the line that reports an epoch."""
    text = f"epoch {entry['epoch']:{len(str(epochs))}}/{epochs}  loss {entry['loss']:.6f}"
    text += f"  test accuracy {entry['accuracy'] * 100:.2f} %  {entry['seconds']:.2f} s"
    if spent := entry["allreduce_s"]:
        text += f"  allreduce {spent['median'] * 1e3:.2f} ms (most {spent['max'] * 1e3:.2f} ms)"
    return text


if __name__ == "__main__":
    sys.exit(main())
