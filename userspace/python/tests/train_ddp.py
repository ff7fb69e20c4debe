"""Trains a small model with DDP under torchrun. Nothing in it depends on the backend, which --backend names.

    torchrun --nproc_per_node=2 train_ddp.py --backend gloo
    torchrun --nproc_per_node=2 train_ddp.py --backend sumac --plugin sumac.torch
"""

from __future__ import annotations

import argparse
import importlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Prints the mean loss of the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument(
        "--plugin", help="a module to import; torch 2.5 and later import installed ones themselves"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--fail-once", action="store_true", help="the last rank exits in the first attempt")
    arguments = parser.parse_args()
    if arguments.plugin:
        importlib.import_module(arguments.plugin)

    dist.init_process_group(arguments.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(2 + rank)
    mean = torch.zeros(1)
    for step in range(arguments.steps):
        if (
            arguments.fail_once
            and step == 5
            and rank == world - 1
            and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        ):
            os._exit(1)
        data = torch.randn(16, 32, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(data), data[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().double() / world
    dist.all_reduce(mean)
    if rank == 0:
        print(f"loss {mean.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
