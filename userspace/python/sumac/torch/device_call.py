"""Calls of tensors on a device, and of large ones: through memory that the daemon shares, in pieces.

Copying down, summing, and copying up overlap: while a piece is summed, the next one is copied down and the
last one up. Copies wait for their end in threads of this backend, so a work that has ended needs no event.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import SumacError
from . import devices
from .collectives import Call, GroupCall, nbytes
from .counters import Counters
from .dtypes import Reduction
from .errors import CollectiveError
from .jobs import GroupJob, GroupJobs
from .queue import Phase
from .runtime import Host
from .work import Work

_PIECE = 4 << 20
"""Bytes of a piece in host memory."""
_UNDER_WAY = 16
"""Pieces of a call that are under way at a time. They bound its memory."""
_PAUSE = 5e-5
"""Seconds after which a device is asked again, at first."""
LARGE = 8 << 20
"""Bytes above which tensors in memory go in pieces, in the calls that may be cut."""

Rows = Mapping[int, torch.Tensor]
"""Tensors by their rows in host memory."""


class Piece(Phase):
    """A part of a call, of its elements from ``first`` on. The call ends with its last one."""

    def __init__(self, whole: Work, first: int = 0) -> None:
        super().__init__(whole)
        self._first = first
        if first:
            self.call = f"{whole.call}, its elements from {first} on"

    @property
    def has_future(self) -> bool:
        return self._whole.has_future

    def publish(self, error: BaseException | None) -> None:
        if isinstance(self._error, SumacError) and self._error.index is not None:
            self._error = self._error.moved(self._first)
        super().publish(error)
        if error is None:
            if self.loss is not None:
                self._whole.loss = self.loss
            if self._whole.end(self.exception()):
                self._whole.finish()


class Copies:
    """The streams of a group's copies, of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = devices.of(device)
        # As the counters have them.
        self.ways = ("copied_in", "copied_out") if device == devices.MEMORY else ("copied_down", "copied_up")
        self.index = 0 if device.index is None else device.index
        self._down = self.device.stream(self.index)
        self._up = self.device.stream(self.index)

    def event(self) -> Any:
        """Returns an event after which a call's tensors may be read and written."""
        return self.device.event(self.index)

    def down(self, after: Any, copies: Callable[[], object]) -> None:
        """Runs copies from the device, and waits for what is in host memory."""
        with self.device.copying(self._down, after):
            copies()

    def run(self, after: Any, act: Callable[[], object], look: Callable[[], None]) -> None:
        """Runs work on the device, and waits for it. ``look`` may end the wait by an error."""
        self.down(after, act)
        self._wait(self._down, look)

    def up(self, after: Any, copies: Callable[[], None]) -> None:
        """Runs copies to the device, and waits for them: those of strided tensors end after the call."""
        with self.device.copying(self._up, after):
            copies()
        self._wait(self._up, lambda: None)

    def _wait(self, stream: Any, look: Callable[[], None]) -> None:
        pause = _PAUSE
        while not self.device.is_idle(stream):
            look()
            time.sleep(pause)
            pause = min(2 * pause, 4 * _PAUSE)


class DeviceCall(GroupCall):
    """One call of tensors on a device: the same as :class:`.collectives.Call` has for those in memory."""

    def __init__(self, jobs: GroupJobs, counters: Counters, work: Work, copies: Callable[[], Copies]) -> None:
        """The call follows the work of the caller's current stream. Raises :class:`NotImplementedError` where
        that is captured into a graph."""
        super().__init__(jobs, counters, work)
        self._error: RuntimeError | None = None
        self._is_ready = False
        try:
            self._copies = copies()
            self._after = self._copies.event()
        except RuntimeError as error:
            if isinstance(error, NotImplementedError) and not isinstance(error, devices.UnknownDevice):
                raise
            self._error = error  # Raised once this rank's job is opened: other ranks wait for that.
        self._under_way: collections.deque[Piece] = collections.deque()

    def run(self, act: Callable[[], None], look: Callable[[], None]) -> None:
        """Runs work on tensors, after the current stream's of the call, and waits for it. ``look`` may end
        the wait by an error."""
        self._await_device()
        self._copies.run(self._after, act, look)

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Has an error of the device end the group's jobs: other ranks cannot go on without this one."""
        try:
            yield
        except devices.UnknownDevice as error:
            text = f"{self._work.call}: {error}"
            self._jobs.abandon(CollectiveError("device", text))
            raise devices.UnknownDevice(f"sumac: {text}") from None
        except NotImplementedError:
            raise
        except RuntimeError as error:
            failed = CollectiveError("device", f"{self._work.call}: {what}: {error}")
            self._jobs.abandon(failed)
            raise failed from error

    def _await_device(self) -> None:
        """Waits for the work before the call, once: the threads that end works would wait for it else. The
        job is open or being opened, so that its other ranks learn of an error."""
        if self._is_ready:
            return
        with self._failing("the device"):
            if self._error is not None:
                raise self._error
            self._work.waits_on = "work that the device's current stream had before the call"
            self._copies.run(self._after, lambda: None, self._check_deadline)
            self._work.waits_on = None
        self._is_ready = True

    def _check_deadline(self) -> None:
        if self._work.is_completed():
            raise RuntimeError("its stream's work has not ended within the group's timeout")

    # Calls whose ranks have tensors of one size.

    def all_reduce(
        self,
        tensor: torch.Tensor,
        reduction: Reduction,
        *,
        out: torch.Tensor | None = None,
        feedback: torch.Tensor | None = None,
        **options: Any,
    ) -> None:
        """Reduces a tensor over all ranks. With a loss bound, or ``feedback``, in one piece: the bound is of
        the whole tensor."""
        result = tensor if out is None else out

        host = self._host_reduction(reduction)

        def submit(call: Call, rows: torch.Tensor) -> None:
            kept = {} if feedback is None else {"feedback": rows[1], "out": rows[2]}
            call.all_reduce(rows[0], host, **kept, **options)

        up = {0: result} if feedback is None else {1: feedback, 2: result}
        is_whole = feedback is not None or "loss_bound" in options
        self._pieces(1 if feedback is None else 3, {0: tensor}, up, submit, is_whole=is_whole)

    def reduce(self, tensor: torch.Tensor, root: int, reduction: Reduction) -> None:
        host = self._host_reduction(reduction)
        up = {0: tensor} if self._rank == root else {}
        self._pieces(1, {0: tensor}, up, lambda call, rows: call.reduce(rows[0], root, host))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        down, up = ({0: tensor}, {}) if self._rank == root else ({}, {0: tensor})
        self._pieces(1, down, up, lambda call, rows: call.broadcast(rows[0], root))

    def all_gather(self, tensor: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        self._pieces(
            self._world, {self._rank: tensor}, dict(enumerate(outputs)),
            lambda call, rows: call.all_gather_tensor(rows[self._rank], rows),
        )

    def all_gather_tensor(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        self.all_gather(tensor, list(self._flat(output, is_written=True).view(self._world, -1)))

    def reduce_scatter(
        self, inputs: Sequence[torch.Tensor], output: torch.Tensor, reduction: Reduction
    ) -> None:
        host = self._host_reduction(reduction)
        if len({tensor.numel() for tensor in inputs}) > 1:
            return self._blocks_of_several_sizes(inputs, output, host)
        self._pieces(
            self._world, dict(enumerate(inputs)), {self._rank: output},
            lambda call, rows: call.reduce_scatter_tensor(rows, rows[self._rank], host),
        )

    def reduce_scatter_tensor(
        self, tensor: torch.Tensor, output: torch.Tensor, reduction: Reduction
    ) -> None:
        self.reduce_scatter(list(self._flat(tensor).view(self._world, -1)), output, reduction)

    def _blocks_of_several_sizes(
        self, inputs: Sequence[torch.Tensor], output: torch.Tensor, reduction: Reduction
    ) -> None:
        host = self._jobs.main.host
        with self._part() as work:
            blocks = [self._down(work, host, tensor) for tensor in inputs]
            result = self._room(work, host, output)
            self._call(work).reduce_scatter(blocks, result, reduction)
            self._then_up(work, output, result)

    def barrier(self) -> None:
        """Ends when all ranks have called it, after their current streams' work."""
        assert self._jobs.main is not None
        self._await_device()
        self._call(self._work).barrier()

    # Transfers, of whole tensors: their ends wait for each other in an order that is the callers'.

    def send(self, job: GroupJob, tensor: torch.Tensor, destination: int, tag: int = 0) -> None:
        with self._part() as work:
            given = self._down(work, job.host, tensor)
            self._call(work).send(job, given, destination, tag)

    def receive(self, job: GroupJob, tensor: torch.Tensor, source: int, tag: int = 0) -> None:
        with self._part() as work:
            taken = self._room(work, job.host, tensor)
            self._call(work).receive(job, taken, source, tag)
            self._then_up(work, tensor, taken)

    def exchange(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self._transfer(inputs, outputs, lambda call, given, taken: call.exchange(given, taken))

    def gather(self, tensor: torch.Tensor, outputs: Sequence[torch.Tensor], root: int) -> None:
        self._transfer([tensor], outputs, lambda call, given, taken: call.gather(given[0], taken, root))

    def scatter(self, inputs: Sequence[torch.Tensor], output: torch.Tensor, root: int) -> None:
        self._transfer(inputs, [output], lambda call, given, taken: call.scatter(given, taken[0], root))

    def _transfer(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor],
        submit: Callable[[Call, list[torch.Tensor], list[torch.Tensor]], None],
    ) -> None:
        host = (self._jobs.exchanges if self._world > 1 else self._jobs.main).host
        with self._part() as work:
            given = [self._down(work, host, tensor) for tensor in inputs]
            taken = [self._room(work, host, tensor) for tensor in outputs]
            submit(self._call(work), given, taken)
            for tensor, result in zip(outputs, taken):
                self._then_up(work, tensor, result)

    # Pieces.

    def _pieces(
        self, count: int, down: Rows, up: Rows, submit: Callable[[Call, torch.Tensor], None],
        is_whole: bool = False,
    ) -> None:
        """Executes a call in pieces of tensors of one size. A piece has ``count`` rows in host memory, of
        which ``submit`` submits its operation."""
        like = next(iter((down or up).values()))
        length = step = like.numel()
        if not length:
            return
        if not is_whole:
            # Pieces begin at whole cache lines, in the host's memory too.
            step = max(_PIECE // (like.element_size() * count) // 4096, 1) * 4096
        in_place = self._lies_with_daemon(down, up)
        flats: dict[int, torch.Tensor] = {}
        for tensor in down.values():
            flats[id(tensor)] = self._flat(tensor, is_written=any(tensor is other for other in up.values()))
        for tensor in up.values():
            if id(tensor) not in flats:
                flats[id(tensor)] = self._flat(tensor, is_written=True, is_read=False)
        down, up = ({row: flats[id(tensor)] for row, tensor in rows.items()} for rows in (down, up))
        for start in range(0, length, step):
            if len(self._under_way) == _UNDER_WAY:
                self._jobs.submissions.wait(self._under_way.popleft())
            part = slice(start, min(start + step, length))
            if in_place:
                self._piece_in_place(part, (down or up)[0], submit)
            else:
                self._piece((like.dtype, count), part, down, up, submit)

    def _piece_in_place(
        self, part: slice, flat: torch.Tensor, submit: Callable[[Call, torch.Tensor], None]
    ) -> None:
        with self._part(part.start) as work:
            submit(Call(self._jobs, self._counters, work), flat[part].view(1, -1))
            self._under_way.append(work)

    def _piece(
        self, rows_of: tuple[torch.dtype, int], part: slice, down: Rows, up: Rows,
        submit: Callable[[Call, torch.Tensor], None],
    ) -> None:
        (dtype, count), size = rows_of, part.stop - part.start

        def copy_down() -> None:
            for row, tensor in down.items():
                rows[row].copy_(tensor[part])
                self._counters.count_tensor(self._copies.ways[0], nbytes(rows[row]))

        def copy_up() -> None:
            for row, tensor in up.items():
                tensor[part].copy_(rows[row])
                self._counters.count_tensor(self._copies.ways[1], nbytes(rows[row]))

        with self._part(part.start) as work:
            rows = self._buffer(work, self._jobs.main.host, dtype, count * size).view(count, size)
            self._copies_down(copy_down)
            submit(self._call(work), rows)
            work.then(lambda: self._up(copy_up))
            self._under_way.append(work)

    def _flat(self, tensor: torch.Tensor, is_written: bool = False, is_read: bool = True) -> torch.Tensor:
        """Returns a tensor in one dimension: itself, or memory for its elements where strides allow none.
        What is written there is copied at the call's end."""
        if tensor.is_contiguous():
            return tensor.view(-1)
        if is_read:
            flat = self._on_device(lambda: tensor.contiguous().view(-1))
        else:
            count, dtype, device = tensor.numel(), tensor.dtype, tensor.device
            flat = self._on_device(lambda: torch.empty(count, dtype=dtype, device=device))
        if is_written:
            self._work.then(lambda: self._up(lambda: tensor.copy_(flat.view(tensor.shape))))
        return flat

    @contextlib.contextmanager
    def _part(self, first: int = 0) -> Iterator[Piece]:
        """Begins a part of the call, and ends it: with the error, if there is one."""
        self._work.begin()
        part = Piece(self._work, first)
        error: BaseException | None = None
        try:
            yield part
        except BaseException as found:
            error = found
            raise
        finally:
            if part.end(error):
                part.finish()

    def _lies_with_daemon(self, down: Rows, up: Rows) -> bool:
        """Returns whether a call is one of a single tensor that needs no copies."""
        tensors = [*down.values(), *up.values()]
        like = tensors[0]
        is_one = all(tensor is like for tensor in tensors) and like.device == devices.MEMORY
        return is_one and like.is_contiguous() and self._jobs.main.host.holds(like)

    def _call(self, work: Work) -> Call:
        return Call(self._jobs, self._counters, work, is_staged=True)

    # Copies.

    def _buffer(self, work: Work, host: Host, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Returns page-locked memory that the daemon shares, until the end of a work."""
        self._await_device()
        length = max(count * torch.empty((), dtype=dtype).element_size(), 4)
        buffer = host.staging.take_locked(length, self._copies.device, self._copies.index)
        return work.holds(host.staging, buffer).tensor(dtype, count)

    def _room(self, work: Work, host: Host, tensor: torch.Tensor) -> torch.Tensor:
        return self._buffer(work, host, tensor.dtype, tensor.numel()).view(tensor.shape)

    def _down(self, work: Work, host: Host, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor's values in host memory."""
        values = self._room(work, host, tensor)
        self._copies_down(lambda: values.copy_(tensor))
        self._counters.count_tensor(self._copies.ways[0], nbytes(tensor))
        return values

    def _then_up(self, work: Work, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Adds the step that writes a result to its tensor."""
        self._counters.count_tensor(self._copies.ways[1], nbytes(tensor))
        work.then(lambda: self._up(lambda: tensor.copy_(host)))

    def _copies_down(self, copies: Callable[[], object]) -> None:
        with self._failing("copying from the device"):
            self._copies.down(self._after, copies)

    def _up(self, copies: Callable[[], object]) -> None:
        if self._work.is_completed():
            return  # The timeout has passed.
        with self._failing("copying to the device"):
            self._copies.up(self._after, copies)

    def _on_device(self, make: Callable[[], Any]) -> Any:
        """Returns what is made in the stream of copies."""
        assert self._jobs.main is not None
        self._await_device()
        made: list[Any] = []
        self._copies_down(lambda: made.append(make()))
        return made[0]

    def _host_reduction(self, reduction: Reduction) -> Reduction:
        """Returns the reduction with a factor in host memory."""
        if not isinstance(reduction.factor, torch.Tensor):
            return reduction
        return Reduction(reduction.name, self._on_device(reduction.factor.cpu))
