"""Cases of the tests of ``sumac.torch``: threads that wait for works."""

from __future__ import annotations

import signal
import threading
import time

import torch
import torch.distributed as dist

import sumac.torch

from .torch_cases import check, same
from .torch_ranks import Ranks


def threads_at_once(ranks: Ranks) -> None:
    """Threads that wait at the same time, each for works of its own group, or all for one."""
    groups = [dist.new_group() for _ in range(3)]
    errors: list[BaseException] = []

    def train(group: dist.ProcessGroup, shared: dist.Work) -> None:
        try:
            for number in range(50):
                tensors = [torch.full((10,), float(ranks.rank)) for _ in range(4)]
                works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
                for work in reversed(works):
                    work.wait()
                for tensor in tensors:
                    same(tensor, torch.full((10,), float(sum(range(ranks.world)))), number)
            shared.wait()
        except BaseException as error:  # noqa: BLE001 - the case reports it
            errors.append(error)

    shared = dist.all_reduce(torch.ones(10), async_op=True)
    threads = [threading.Thread(target=train, args=(group, shared)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not errors, errors)
    for group in groups:
        dist.destroy_process_group(group)


def others_end_while_one_waits(ranks: Ranks) -> None:
    """A thread that waits for a work keeps nobody from an earlier one: neither a thread nor a callback."""
    for has_future in (False, True):
        tensors = [torch.ones(10), torch.ones(10)]
        if ranks.rank == 0:
            early, late = (dist.all_reduce(tensor, async_op=True) for tensor in tensors)
            first = threading.Thread(target=late.wait)
            first.start()
            time.sleep(0.1)  # It takes the job's ends.
            if has_future:
                called = threading.Event()
                early.get_future().then(lambda _: called.set())
                check(called.wait(20.0), "the callback")
            else:
                second = threading.Thread(target=early.wait)
                second.start()
                second.join(20.0)
                check(not second.is_alive(), "the other thread")
            dist.barrier(group=ranks.gloo)
            first.join()
        else:
            time.sleep(0.3)
            dist.all_reduce(tensors[0])
            # The late one ends only after rank 0 has noticed the early one's end.
            dist.barrier(group=ranks.gloo)
            dist.all_reduce(tensors[1])
        for tensor in tensors:
            same(tensor, torch.full((10,), float(ranks.world)), has_future)


def interrupts(ranks: Ranks) -> None:
    """A wait that an interrupt such as Ctrl-C ends can be repeated."""
    backend = sumac.torch.backend()
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    for number in range(10):
        tensor = torch.full((10,), float(ranks.rank))
        if ranks.rank == 0:
            work = backend.submit_allreduce(tensor)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            try:
                work.wait()
                check(False, "the wait was not interrupted")
            except KeyboardInterrupt:
                pass
        dist.barrier(group=ranks.gloo)
        if ranks.rank != 0:
            work = backend.submit_allreduce(tensor)
        work.wait()
        same(tensor, torch.full((10,), float(sum(range(ranks.world)))), number)
    signal.signal(signal.SIGALRM, previous)
