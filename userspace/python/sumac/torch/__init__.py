"""The backend ``sumac`` of ``torch.distributed``: collectives of CPU and CUDA tensors in the network.

>>> import torch.distributed as dist, sumac.torch
>>> dist.init_process_group("sumac")

Settings are in the environment (``SUMAC_SOCKET`` first of all) and in :class:`Options`; see
``docs/pytorch.md``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist

from . import devices, replace
from .backend import ProcessGroupSumac
from .base import IS_BACKEND
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


def _kinds() -> list[str]:
    """Returns the devices of torch's, and others that are known, beside the CPU."""
    return sorted({"cuda", "xpu", "mps", "hpu", "npu", "privateuseone", *devices.kinds()})


def _create(terms: Any, options: Options | None) -> ProcessGroupSumac:
    if options is not None and not isinstance(options, Options):
        raise TypeError(
            f"pg_options of the backend sumac are sumac.torch.Options, not {type(options).__name__}"
        )
    _check_device(terms.store, terms.group_rank)
    group = ProcessGroupSumac(
        terms.store, terms.group_rank, terms.group_size, terms.timeout, options, terms.group_id,
        is_default=not terms.global_ranks_in_group,
    )
    group.is_torchs()
    return group


def _check_device(store: Any, rank: int) -> None:
    """Refuses a map that has this backend for a device that is not known.

    Torch tells a backend its device by the prefix of its store alone.
    """
    around = getattr(store, "underlying_store", None)
    if not hasattr(around, "check"):  # Torch 1 has no maps of devices.
        return
    # The next group may have the same prefix, and other ranks are at other places.
    key = f"sumac_device.{rank}"
    store.set(key, "")
    # The prefix of a store is the device and a slash, which torch joins to the key with another one.
    device = next((kind for kind in _kinds() if around.check([f"{kind}//{key}"])), "cpu")
    store.delete_key(key)
    if not devices.known(device):
        raise ValueError(
            f"sumac: no backend for {device}; have another one for that device, as in "
            f"cpu:sumac,{device}:BACKEND"
        )


def register() -> None:
    """Registers the backend. An import of this module does, and from torch 2.5 on an import of torch (its
    plug-ins' entry point)."""
    if hasattr(dist.Backend, "SUMAC"):
        return
    arguments: dict[str, Any] = {"extended_api": True}
    if hasattr(dist.Backend, "default_device_backend_map"):  # torch 2
        arguments["devices"] = ["cpu", "cuda"]
    dist.Backend.register_backend("sumac", _create, **arguments)
    replace.install()


def backend(group: dist.ProcessGroup | None = None) -> ProcessGroupSumac:
    """Returns the backend of the default group, or of ``group``: for CPU tensors, or else for a device's."""
    asked = dist.distributed_c10d._get_default_group() if group is None else group
    found = asked
    if IS_BACKEND and isinstance(asked, dist.ProcessGroup):
        for kind in ("cpu", *_kinds()):
            with contextlib.suppress(RuntimeError):  # The group has no backend for this kind.
                of_kind = asked._get_backend(torch.device(kind))
                found = of_kind if not isinstance(found, ProcessGroupSumac) else found
    if not isinstance(found, ProcessGroupSumac):
        raise ValueError(f"the group's backend is {dist.get_backend(asked)}, not sumac")
    return found


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Returns a group's job, and its counters of operations and copies"""
    return backend(group).stats()


if dist.is_available():
    register()
