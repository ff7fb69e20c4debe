"""The class of torch that the backend is a subclass of."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


def _subclassable() -> Any:
    """Returns torch's Backend where Python may make one, else its ProcessGroup."""
    backend = getattr(c10d, "Backend", None)
    try:
        backend(0, 1)
    except TypeError:
        # There is none (torch 1), or it has no constructor for Python.
        return dist.ProcessGroup
    return backend


Base: Any = _subclassable()

IS_BACKEND = Base is not dist.ProcessGroup
"""Whether torch has process groups of its own, with backends for devices. Otherwise the backend is the
group."""


def untraced(cls: type) -> type:
    """Keeps torch.compile out of the methods of a class that work with registered memory: Dynamo compiles
    what torch calls back while a compiled model runs."""
    disable = getattr(torch, "_disable_dynamo", None)
    for name, member in list(vars(cls).items()):
        if disable is not None and inspect.isfunction(member) and name not in _TRACED:
            setattr(cls, name, disable(member))
    return cls


_TRACED = ("__init__", "rank", "size", "name", "getBackendName")
"""Methods that only return what the group is."""
