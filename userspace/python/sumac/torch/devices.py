"""Devices whose tensors are not in this machine's memory: events, streams of copies, page-locked memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Device(Protocol):
    """A kind of device. Streams and events are its own kinds of objects."""

    def event(self, index: int) -> Any:
        """Returns an event at the end of the work that the current stream of a device has. Raises
        :class:`NotImplementedError` while that stream is captured into a graph."""
        ...

    def stream(self, index: int) -> Any:
        """Returns a stream of a device for copies."""
        ...

    def copying(self, stream: Any, after: Any) -> AbstractContextManager[None]:
        """Has copies of this thread executed in a stream, after an event."""
        ...

    def is_idle(self, stream: Any) -> bool:
        """Returns whether a stream has no work left."""
        ...

    def lock(self, index: int, address: int, length: int) -> None:
        """Locks pages of this process's memory for copies by devices. Raises :class:`RuntimeError` where it
        cannot."""
        ...

    def unlock(self, index: int, address: int) -> None:
        """Unlocks them."""
        ...


class Cuda:
    """NVIDIA's GPUs, and AMD's, which torch has under the same name."""

    _PORTABLE = 1
    """The memory is page-locked for all devices of the process."""

    def event(self, index: int) -> torch.cuda.Event:
        with torch.cuda.device(index):
            if torch.cuda.is_current_stream_capturing():
                raise NotImplementedError(
                    "sumac: a CUDA graph cannot capture a collective of sumac: the network is not part of "
                    "the graph. Capture what comes before and after it"
                )
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(index))
            return event

    def stream(self, index: int) -> torch.cuda.Stream:
        return torch.cuda.Stream(index)

    @contextlib.contextmanager
    def copying(self, stream: torch.cuda.Stream, after: torch.cuda.Event) -> Iterator[None]:
        # The thread's device from now on: a switch back to another one would take memory there.
        torch.cuda.set_device(stream.device)
        with torch.cuda.stream(stream):
            stream.wait_event(after)
            yield

    def is_idle(self, stream: torch.cuda.Stream) -> bool:
        return stream.query()

    def lock(self, index: int, address: int, length: int) -> None:
        with torch.cuda.device(index):
            code = int(torch.cuda.cudart().cudaHostRegister(address, length, self._PORTABLE))
            if code:
                # The runtime keeps the code for the next kernel, which is this one.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device=torch.device("cuda", index))
            torch.cuda.check_error(code)

    def unlock(self, index: int, address: int) -> None:
        with torch.cuda.device(index):
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(address)))


class Memory:
    """This machine's memory, for tensors that are too large to be copied at once. Its work is done when it is
    called for."""

    def event(self, index: int) -> None:
        return None

    def stream(self, index: int) -> None:
        return None

    def copying(self, stream: None, after: None) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_idle(self, stream: None) -> bool:
        return True

    def lock(self, index: int, address: int, length: int) -> None:
        pass

    def unlock(self, index: int, address: int) -> None:
        pass


MEMORY = torch.device("cpu")

_devices: dict[str, Device] = {"cuda": Cuda()}
_lock = threading.Lock()


def register_device(kind: str, device: Device) -> None:
    """Adds a kind of device, by torch's name for it."""
    with _lock:
        _devices[kind] = device


def kinds() -> list[str]:
    """Returns the known kinds of devices."""
    return sorted(_devices)


def known(kind: str) -> bool:
    """Returns whether tensors on this kind of device can be reduced."""
    return kind == "cpu" or kind in _devices


def device_of(call: str, tensors: list[torch.Tensor]) -> torch.device | None:
    """Returns the device of a call's tensors; ``None`` if they are in this machine's memory."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{call}: tensors must be on the same device, not on {listed}")
    device = next(iter(devices), torch.device("cpu"))
    return None if device.type == "cpu" else device


class UnknownDevice(NotImplementedError):
    """Tensors lie on a kind of device that is not known here."""


def of(device: torch.device) -> Device:
    """Returns the kind of a device that :func:`device_of` has returned, or of :data:`MEMORY`. Raises
    :class:`UnknownDevice`."""
    if device == MEMORY:
        return Memory()
    if device.type not in _devices:
        listed = ", ".join(kinds())
        raise UnknownDevice(f"a tensor on {device}: devices are {listed}; copy it with tensor.cpu()")
    return _devices[device.type]
