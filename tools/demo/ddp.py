#!/usr/bin/python3
"""Trains a network on scanned digits with PyTorch's DistributedDataParallel. Started by torchrun, on each
host:

  torchrun --nnodes 4 --node_rank 0 --master_addr 10.77.0.2 tools/demo/ddp.py --backend gloo

It is the same script for every backend of torch.distributed.

Exit codes: 0 trained, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Optional

import sumac.torch  # Registers the backend "sumac".
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import digits

WARMUP_STEPS = 5
"""Steps that are not timed: DDP forms its buckets in the first ones."""


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs the command line; gives the exit code."""
    options = parse(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    torch.distributed.init_process_group(options.backend)
    try:
        result = train(options)
    finally:
        torch.distributed.destroy_process_group()
    if options.out and result["rank"] == 0:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def parse(arguments: Optional[list[str]]) -> argparse.Namespace:
    """Reads the command line."""
    summary, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", required=True, help="of torch.distributed: gloo, sumac")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the images (default %(default)s)")
    parser.add_argument(
        "--batch", type=int, default=128, help="images of all workers in a step (default %(default)s)"
    )
    parser.add_argument(
        "--hidden", type=int, default=512, help="width of the hidden layers (default %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (default %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="of the descent (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of split, order and first weights (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="write rank 0's result there as JSON")
    return parser.parse_args(arguments)


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Trains, with a line for each epoch on rank 0; returns accuracy and times."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    data = digits.load(options.seed)
    hidden = options.hidden
    layers = [nn.Linear(digits.PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
              nn.Linear(hidden, digits.CLASSES)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.rate, momentum=options.momentum)
    accuracies: list[float] = []
    steps: list[float] = []
    for epoch in range(1, options.epochs + 1):
        loss = torch.zeros(())
        for batch in digits.batches(len(data.train.labels), options.batch, options.seed, epoch):
            begin = time.perf_counter()
            mine = digits.take(data.train, digits.share(batch, rank, world))
            optimizer.zero_grad()
            output = model(torch.from_numpy(mine.pixels))
            loss = nn.functional.cross_entropy(output, torch.from_numpy(mine.labels))
            loss.backward()
            optimizer.step()
            steps.append(time.perf_counter() - begin)
        accuracies.append(accuracy(model.module, data.test))
        if rank == 0:
            print(
                f"epoch {epoch:{len(str(options.epochs))}}/{options.epochs}  loss {loss.item():.6f}  test accuracy {accuracies[-1] * 100:.2f} %",
                flush=True,
            )
    timed = steps[WARMUP_STEPS:] or steps
    return {
        "backend": torch.distributed.get_backend(),
        "torch": torch.__version__,
        "world": world,
        "rank": rank,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "accuracy": accuracies[-1],
        "steps": len(timed),
        "step_s": {"median": statistics.median(timed), "max": max(timed)},
        "copies": sumac.torch.stats() if torch.distributed.get_backend() == "sumac" else None,
    }


def accuracy(model: nn.Module, images: digits.Images) -> float:
    """Returns the fraction of images that are recognised."""
    with torch.no_grad():
        output = model(torch.from_numpy(images.pixels))
    return float((output.argmax(1) == torch.from_numpy(images.labels)).float().mean())


if __name__ == "__main__":
    sys.exit(main())
