"""The backend ``sumac`` of ``torch.distributed``: collectives of CPU tensors in the network.

>>> import torch.distributed as dist, sumac.torch
>>> dist.init_process_group("sumac")

Settings are in the environment (``SUMAC_SOCKET`` first of all) and in :class:`Options`; see ``docs/pytorch.md``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .backend import ProcessGroupSumac
from .errors import CollectiveError
from .memory import empty, gradients, zeros
from .options import Options
from .work import Work

__all__ = [
    "CollectiveError",
    "Options",
    "ProcessGroupSumac",
    "Work",
    "backend",
    "empty",
    "gradients",
    "register",
    "stats",
    "zeros",
]


def _create(terms: Any, options: Options | None) -> ProcessGroupSumac:
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options of the backend sumac are sumac.torch.Options, not {type(options).__name__}")
    group = ProcessGroupSumac(
        terms.store, terms.group_rank, terms.group_size, terms.timeout, options, terms.group_id,
        is_default=not terms.global_ranks_in_group,
    )
    group.is_torchs()
    return group


def register() -> None:
    """Registers the backend. An import of this module does, and from torch 2.5 on an import of torch (its plug-ins' entry point)."""
    if hasattr(dist.Backend, "SUMAC"):
        return
    arguments: dict[str, Any] = {"extended_api": True}
    if hasattr(dist.Backend, "default_device_backend_map"):  # torch 2
        arguments["devices"] = ["cpu"]
    dist.Backend.register_backend("sumac", _create, **arguments)


def backend(group: dist.ProcessGroup | None = None) -> ProcessGroupSumac:
    """Returns the process group of the backend: the default one, or ``group`` itself."""
    found = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(found, ProcessGroupSumac):
        raise ValueError(f"the group's backend is {dist.get_backend(found)}, not sumac")
    return found


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Returns a group's job, and its counters of operations and copies"""
    return backend(group).stats()


if dist.is_available():
    register()
