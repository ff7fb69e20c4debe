"""Trains a small model with DistributedDataParallel over Sumac: what the launchers start in their
examples."""

import os

import sumac.torch  # registers the backend "sumac"
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 50


def main() -> None:
    dist.init_process_group("sumac")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # Each rank has samples of its own.
    samples = torch.Generator().manual_seed(1 + rank)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(64, 8, generator=samples)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    ends = torch.stack([losses[0], losses[-1]])
    dist.all_reduce(ends)
    # All ranks have the same gradients, so the same model: the largest and the smallest parameter sums are
    # one.
    checksum = sum(parameter.detach().double().sum() for parameter in model.parameters()).float().reshape(1)
    largest, smallest = checksum.clone(), checksum.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    assert torch.equal(largest, smallest), "the ranks' models differ"
    first, last = (ends / world).tolist()
    print(
        f"rank {rank} of {world} on {os.uname().nodename}: loss {first:.3f}, after {STEPS} steps {last:.3f}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
