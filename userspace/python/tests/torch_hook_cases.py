"""Cases of the tests of ``sumac.torch.hooks``, which all ranks run at once, each with a model of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from sumac.torch import backend, hooks

from .torch_cases import check
from .torch_ranks import Ranks

WIDTH = 512
"""Of layers with a megabyte of gradients each: DDP's first bucket has as much, so that each is a bucket."""


class Backwards(nn.Module):
    """Three layers, registered in another order than they are used: DDP then forms its buckets anew after the
    first step."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(values)))))


def model(group: dist.ProcessGroup | None = None) -> DistributedDataParallel:
    """Returns the same model on all ranks."""
    torch.manual_seed(1)
    return DistributedDataParallel(Backwards(), process_group=group, bucket_cap_mb=1)


def step(ranks: Ranks, trained: DistributedDataParallel, number: int) -> list[torch.Tensor]:
    """Returns the gradients after one step, on other values on each rank."""
    torch.manual_seed(number * ranks.world + ranks.rank)
    trained.zero_grad()
    trained(torch.randn(4, WIDTH)).square().sum().backward()
    return [parameter.grad.clone() for parameter in trained.parameters()]


def error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Returns the largest difference, as a part of the tensor's largest value."""
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected))


def compare(ranks: Ranks, largest: float, least: float = 0.0, register: Callable[..., Any] = hooks.register,
            **options: Any) -> None:
    """Compares three steps with those of DDP over Gloo, which has no hook."""
    plain, hooked = model(ranks.gloo), model()
    register(hooked, **options)
    errors = [error(step(ranks, hooked, number), step(ranks, plain, number)) for number in range(3)]
    check(least <= errors[0] <= largest, options, errors)
    # Later steps have the first one's error too, which is fed back.
    check(max(errors) <= 2 * largest, options, errors)


def plain(ranks: Ranks) -> None:
    compare(ranks, 2e-6)


def reductions(ranks: Ranks) -> None:
    trained, mean = model(), model(ranks.gloo)
    hooks.register(trained, reduction="sum")
    found, expected = step(ranks, trained, 0), step(ranks, mean, 0)
    check(error(found, [values * ranks.world for values in expected]) < 2e-6)


def bfloat16(ranks: Ranks) -> None:
    # 8 bits of mantissa in each value, and again in the sum.
    compare(ranks, 2 * 2**-8, 1e-4, wire="bfloat16")


def _int16_error(ranks: Ranks) -> float:
    """The largest value of a rank in a packet, at most world times the mean's, is at least 32767 / world / 2
    steps; errors are half a step."""
    return ranks.world * ranks.world / 32767


def int16(ranks: Ranks) -> None:
    compare(ranks, _int16_error(ranks), 1e-6, wire="int16")


def wrapped(ranks: Ranks) -> None:
    def register(trained: DistributedDataParallel, **options: Any) -> None:
        trained.register_comm_hook(
            hooks.State(**options), default_hooks.fp16_compress_wrapper(hooks.allreduce)
        )

    compare(ranks, 2 * 2**-11, 1e-6, register, priority=True)


def priorities(ranks: Ranks) -> None:
    """The bucket of the first layer is the most urgent, once their number is known."""
    trained = model()
    state = hooks.register(trained, priority=True)
    seen: list[int] = []
    submit = state.group.submit_allreduce

    def spy(*arguments: Any, **options: Any) -> Any:
        seen.append(options["priority"])
        return submit(*arguments, **options)

    state.group.submit_allreduce = spy  # type: ignore[method-assign]
    try:
        for number in range(3):
            seen.clear()
            step(ranks, trained, number)
    finally:
        del state.group.submit_allreduce
    check(len(seen) >= 3 and seen == sorted(seen) and seen[-1] == 5 and seen[0] < 4, seen)


def _total_error(ranks: Ranks, **options: Any) -> tuple[float, int]:
    """Returns how far the sums of six steps' gradients are from those of Gloo, and the number of elements
    left out."""
    plain, lossy = model(ranks.gloo), model()
    state = hooks.register(lossy, **{"loss_bound": 0.2, **options})
    totals = [torch.zeros(WIDTH, WIDTH) for _ in lossy.parameters()]
    left_out = 0
    for number in range(6):
        for total, found, expected in zip(totals, step(ranks, lossy, number), step(ranks, plain, number)):
            total += found - expected
        left_out += sum(sum(loss.by_worker) for loss in state.losses.values())
    for total, parameter in zip(totals, lossy.module.parameters()):
        residual = state.residual(parameter)
        if residual is not None:  # It would follow in the next step.
            residual = residual.clone()
            dist.all_reduce(residual, group=ranks.gloo)
            total += residual / ranks.world
    scale = max(float(values.abs().max()) for values in step(ranks, plain, 0))
    return max(float(total.abs().max()) for total in totals) / scale, left_out


def feedback(ranks: Ranks) -> None:
    """With packets lost on the way: what the bound leaves out follows in later steps, and without feedback is
    lost."""
    error, left_out = _total_error(ranks)
    check(left_out > 0 and error < 1e-5, error, left_out)
    error, left_out = _total_error(ranks, error_feedback=False)
    check(left_out > 0 and error > 1e-2, error, left_out)


def feedback_of_bfloat16(ranks: Ranks) -> None:
    """Beside it what bfloat16 rounds off follows, too: what is left is the rounding of the sums."""
    error, left_out = _total_error(ranks, wire="bfloat16")
    check(left_out > 0 and error < 6 * 2**-8, error, left_out)


def not_finite(ranks: Ranks) -> None:
    """A step with infinite gradients, as of a loss that is scaled too much, does not spoil the next one by
    feedback."""
    for wire, largest in ((None, 2e-6), ("bfloat16", 4 * 2**-8)):
        plain, hooked = model(ranks.gloo), model()
        hooks.register(hooked, wire=wire, error_feedback=True)
        hooked.zero_grad()
        (hooked(torch.full((4, WIDTH), 1e30)).square().sum() * 1e30).backward()
        check(not all(parameter.grad.isfinite().all() for parameter in hooked.parameters()))
        check(error(step(ranks, hooked, 1), step(ranks, plain, 1)) < largest, wire)


def composed(ranks: Ranks) -> None:
    """All options at once. A rank that is late may be left out, too, so only the totals are known."""
    error, _ = _total_error(ranks, priority=True, loss_bound=0.01, wire="int16")
    check(error < 6 * _int16_error(ranks), error)
    error, _ = _total_error(
        ranks, priority=True, loss_bound=lambda bucket: 0.01 * bucket.index(), wire="bfloat16"
    )
    check(error < 6 * 2**-8, error)


def errors(ranks: Ranks) -> None:
    """A hook's exception is raised by backward(), and names the bucket and the cause."""
    for options, expected in (
        ({"loss_bound": lambda bucket: 3.0}, "loss_bound 3"),
        ({"loss_bound": lambda bucket: int("none")}, "invalid literal"),
    ):
        trained = model()
        hooks.register(trained, **options)
        try:
            step(ranks, trained, 0)
        except (RuntimeError, ValueError) as found:  # torch 2 raises the hook's own exception
            check(expected in str(found) and "Unable to cast" not in str(found), str(found))
        else:
            check(False, "no error", expected)
    for options in ({"wire": "int8"}, {"loss_bound": 1.0}, {"loss_bound": -0.1}, {"reduction": "max"},
                    {"process_group": ranks.gloo}):
        try:
            hooks.State(**options)
        except ValueError:
            continue
        check(False, "no error", options)
    # The group goes on.
    check(backend().size() == ranks.world)
    compare(ranks, 2e-6)
