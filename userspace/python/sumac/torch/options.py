"""Settings of process groups: from the environment, and by group from ``pg_options``."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import torch.distributed as dist

from ..client import DEFAULT_SOCKET
from ..errors import SumacError

GATHER_BYTES = 1 << 20
"""The size up to which a reduction that the network does not have is calculated from an allgather."""

SLOTS_OF_OTHERS = 64
"""Slots of each lane of further groups, unless set. The default one has as many as its path needs, which may be all."""


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise ValueError("it is neither 0 nor 1")


def _scale(text: str) -> float | str:
    return text if text == "block" else float(text)


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of one process group, for ``pg_options``. One that is ``None`` has the environment's value,
    else the default.

    The same on all ranks of the group. ``mode`` to ``congestion_control`` are those of
    :meth:`sumac.Client.open`.
    """

    mode: str | None = None
    """``"static"``, ``"dynamic"`` or ``"direct"``: of the job that has the collectives. Environment: SUMAC_MODE. Default: the first of
    them that the control plane does not refuse; static jobs need free slots."""
    scale: float | str | None = None
    """``"block"`` or a factor for floats. Environment: SUMAC_SCALE."""
    wire: str | None = None
    """The wire format of sums of floats: ``"int32"`` (default), ``"int16"`` or ``"auto"``. Environment: SUMAC_WIRE."""
    not_finite: str | None = None
    """``"raw"`` (default): packets with NaN, infinity, or values far below their largest are summed as
    floats; ``"carry"``: NaN and infinity make their packet NaN on all ranks; ``"error"``. Environment:
    SUMAC_NOT_FINITE."""
    slots: int | None = None
    """Slots of each lane of a static job. Environment: SUMAC_SLOTS."""
    elements: int | None = None
    """32-bit words per packet. Environment: SUMAC_ELEMENTS."""
    window: int | None = None
    """Packets in flight, of dynamic and direct jobs. Environment: SUMAC_WINDOW."""
    congestion_control: bool | None = None
    """Whether the job yields to congestion. Environment: SUMAC_CONGESTION_CONTROL."""
    loss_bound: float | None = None
    """The fraction of its elements that each rank may be left out with, in sums and means of floats by ``all_reduce``; default 0."""
    local: str | None = None
    """``"nccl"`` or ``"gloo"``: ``all_reduce`` in two levels, inside each host by that backend. Default: in one. Environment: SUMAC_LOCAL."""
    gather_bytes: int | None = None
    """The size up to which a reduction that the network does not have is calculated from an allgather. Beyond
    it ranks exchange blocks. Environment: SUMAC_GATHER_BYTES."""

    def resolved(self) -> Options:
        """Returns these options with the environment's values where they have none."""
        found = {name: getattr(self, name) for name in _ENVIRONMENT}
        for name, (variable, parse) in _ENVIRONMENT.items():
            text = os.environ.get(variable)
            if found[name] is None and text:
                try:
                    found[name] = parse(text)
                except ValueError as error:
                    raise ValueError(f"{variable}={text}: {error}") from None
        return dataclasses.replace(self, **found)

    def of_job(self, mode: str, wire: str | None, is_default: bool) -> dict[str, Any]:
        """Returns the arguments of :meth:`sumac.Client.open` for a job of the group. The default group has
        the slots it needs."""
        arguments: dict[str, Any] = {
            "mode": mode, "elements": self.elements, "not_finite": self.not_finite or "raw", "wire": wire,
        }
        if mode != "static":
            arguments["window"] = self.window
        if mode != "direct":
            arguments.update(scale=self.scale, congestion_control=self.congestion_control)
        if mode == "static":
            arguments["slots"] = self.slots or (None if is_default else SLOTS_OF_OTHERS)
        elif mode == "dynamic":
            arguments["scale"] = self.scale or "block"
        return arguments


_ENVIRONMENT = {
    "mode": ("SUMAC_MODE", str),
    "scale": ("SUMAC_SCALE", _scale),
    "wire": ("SUMAC_WIRE", str),
    "not_finite": ("SUMAC_NOT_FINITE", str),
    "slots": ("SUMAC_SLOTS", int),
    "elements": ("SUMAC_ELEMENTS", int),
    "window": ("SUMAC_WINDOW", int),
    "congestion_control": ("SUMAC_CONGESTION_CONTROL", _boolean),
    "gather_bytes": ("SUMAC_GATHER_BYTES", int),
    "local": ("SUMAC_LOCAL", str),
}


def socket_path(rank: int | None) -> str:
    """Returns the path of this rank's daemon: SUMAC_SOCKET, in which ``{rank}`` and ``{local_rank}`` are
    replaced.

    They are torchrun's, or else the rank of the default group, which is ``rank`` while it is made.
    """
    pattern = os.environ.get("SUMAC_SOCKET", DEFAULT_SOCKET)
    known = os.environ.get("RANK") or (dist.get_rank() if dist.is_initialized() else rank)
    if known is None and "{" in pattern:
        raise ValueError(
            f"SUMAC_SOCKET={pattern}: the rank is not known before init_process_group; call it first, or set RANK"
        )
    try:
        return pattern.format(rank=known, local_rank=os.environ.get("LOCAL_RANK", known))
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"SUMAC_SOCKET={pattern}: only {{rank}} and {{local_rank}} can be replaced ({error!r})"
        ) from None


def daemon_at(path: str) -> str:
    """Returns what identifies the daemon at a socket among those of all hosts, also where its path differs
    between mount namespaces."""
    found = os.stat(path)
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{found.st_dev:x}.{found.st_ino:x}"


def secret() -> str | None:
    """Returns the content of SUMAC_SECRET_FILE: the join token, or the job's secret."""
    path = os.environ.get("SUMAC_SECRET_FILE")
    if not path:
        return None
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError as error:
        raise SumacError("secret_file", f"cannot read SUMAC_SECRET_FILE={path}: {error.strerror}") from error


def job_prefix() -> str:
    """Returns the beginning of the jobs' names: SUMAC_JOB, else torchrun's run id."""
    return os.environ.get("SUMAC_JOB") or os.environ.get("TORCHELASTIC_RUN_ID") or "torch"
