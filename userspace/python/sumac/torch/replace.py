"""Groups of other backends that become Sumac's, for programs that choose the backend themselves.

``SUMAC_REPLACES=gloo`` has ``init_process_group`` and ``new_group`` make groups of the backend sumac where
they are asked for Gloo. Frameworks (Accelerate, Lightning, DeepSpeed) then need no option and no change.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .options import Options

VARIABLE = "SUMAC_REPLACES"

_REPLACEABLE = frozenset({"gloo", "mpi", "nccl"})
"""The backends whose devices sumac has, too."""

_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh")
"""The modules that have the calls by name."""

_LOG = logging.getLogger("sumac.torch")


def install() -> None:
    """Replaces the calls in torch's modules, if the environment asks for it. Raises :class:`ValueError` for a
    backend that cannot be replaced."""
    listed = os.environ.get(VARIABLE, "").lower().split(",")
    names = frozenset(name.strip() for name in listed if name.strip())
    if not names:
        return
    if names - _REPLACEABLE:
        wrong = ", ".join(sorted(names - _REPLACEABLE))
        raise ValueError(f"{VARIABLE}: {wrong} cannot be replaced: {', '.join(sorted(_REPLACEABLE))} can")
    for call in ("init_process_group", "new_group"):
        original = getattr(dist, call)
        if not hasattr(original, "sumac_replaces"):
            wrapper = _wrapper(original, names)
            for module in map(sys.modules.get, _MODULES):
                if getattr(module, call, None) is original:
                    setattr(module, call, wrapper)


def replaced(backend: str, names: frozenset[str]) -> str:
    """Returns a backend's name or map of devices (``cpu:gloo,cuda:nccl``) with these backends replaced.

    >>> replaced("cpu:gloo,cuda:nccl", frozenset({"gloo"}))
    'cpu:sumac,cuda:nccl'
    """
    parts = [part.strip() for part in backend.lower().split(",")]
    wanted = {name: "sumac" for name in names}
    wanted.update({f"{kind}:{name}": f"{kind}:sumac" for name in names for kind in ("cpu", "cuda")})
    return ",".join(wanted.get(part, part) for part in parts)


def _wrapper(original: Callable[..., Any], names: frozenset[str]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        asked = bound.arguments.get("backend")
        if asked is None and original.__name__ == "init_process_group":
            # Torch's choice.
            asked = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if asked is not None:
            chosen = replaced(str(asked), names)
            if chosen != str(asked).lower():
                _report(str(asked), chosen)
                bound.arguments["backend"] = chosen
                if not isinstance(bound.arguments.get("pg_options"), Options):
                    bound.arguments.pop("pg_options", None)  # The other backend's.
        return original(*bound.args, **bound.kwargs)

    call.sumac_replaces = names  # type: ignore[attr-defined]
    return call


@functools.lru_cache(maxsize=None)
def _report(asked: str, chosen: str) -> None:
    """Says once what became of a backend."""
    if os.environ.get("RANK", "0") == "0":
        _LOG.warning("sumac: groups of the backend %s are of %s (%s)", asked, chosen, VARIABLE)
