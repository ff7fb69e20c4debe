"""One connection to the daemon, shared by threads.

There is no reader thread. Of the threads that wait, one reads messages for all until its own answer has
arrived.
"""

from __future__ import annotations

import array
import errno
import json
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .errors import ConnectionLost, Forked, NotConnected, SumacError, from_daemon

MAX_MESSAGE = 128 * 1024
"""The maximum length of a message in bytes, in both directions."""

# As integers: the operators of ``socket.MsgFlag`` are slow.
_TRUNCATED = int(socket.MSG_CTRUNC)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_NO_WAIT = int(socket.MSG_DONTWAIT)

_DESCRIPTOR_SPACE = socket.CMSG_SPACE(array.array("i").itemsize)
"""Space for the one descriptor that may come with a message."""

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
"""``json.dumps`` makes one for each call that has options."""

Found = TypeVar("Found")

_LOG = logging.getLogger("sumac")


class Loss(NamedTuple):
    """The contributions that are missing in the result of an operation with a loss bound, in elements of its
    tensor."""

    elements: int
    """Elements of the tensor."""
    budget: int
    """The most that each worker may be left out with."""
    by_worker: tuple[int, ...]
    """By rank, the elements that the worker was left out with."""
    own: tuple[tuple[int, int], ...]
    """Ranges of this worker's own elements that were left out, each from its first to one past its last."""
    missing: tuple[tuple[int, int], ...] = ()
    """Direct jobs, where ``by_worker`` has what did not arrive here: the ranges of elements that this affects."""

    @property
    def fraction(self) -> float:
        """The fraction of all workers' elements that is missing."""
        return sum(self.by_worker) / (self.elements * len(self.by_worker) or 1)

    @classmethod
    def of(cls, message: dict[str, Any]) -> Loss:
        """Reads the field of a message."""
        own, missing = (
            tuple((first, end) for first, end in message.get(name, ())) for name in ("own", "missing")
        )
        return cls(message["elements"], message["budget"], tuple(message["by_worker"]), own, missing)


class LeftPackets(NamedTuple):
    """Packets of a sum that were not written, since some worker's values do not fit integers."""

    elements: int
    """Elements of a packet; the tensor's last one may be shorter."""
    first: int
    """The packet of the first bit."""
    bits: bytes
    """A bit for each packet, from the lowest of the first byte on."""

    def ranges(self, count: int) -> list[tuple[int, int]]:
        """Returns the packets' ranges of elements, of a tensor of ``count``."""
        bits = np.unpackbits(np.frombuffer(self.bits, np.uint8), bitorder="little")
        # Where runs of packets begin and end.
        edges = np.flatnonzero(np.diff(bits, prepend=0, append=0)) + self.first
        at = np.minimum(edges * self.elements, count).tolist()
        return list(zip(at[::2], at[1::2]))


class Timing(NamedTuple):
    """The times of an operation's steps in the daemon, in seconds of ``time.monotonic()``."""

    received: float
    """The session has read the command."""
    taken: float
    """A data path thread has taken the operation."""
    sent: float
    """The first packets have been passed to the kernel."""
    arrived: float
    """The data path thread has woken up for the last result."""
    ended: float
    """All results are in memory."""

    @classmethod
    def of(cls, message: dict[str, Any]) -> Timing:
        """Reads the field of a message."""
        return cls(*(message[f"{step}_ns"] * 1e-9 for step in cls._fields))


class Waiting(NamedTuple):
    """An operation that waits for other workers."""

    message: str
    ranks: tuple[int, ...]
    """The ranks of these workers, if they are known."""


class Outcome(NamedTuple):
    """The outcome of an operation."""

    duration: float
    """Seconds from submission to the end."""
    error: SumacError | None
    missed: tuple[tuple[int, int], ...] = ()
    """Ranges of elements that were not written."""
    loss: Loss | None = None
    """The contributions that are missing, of an operation with a loss bound."""
    timing: Timing | None = None
    """The times of its steps, of an operation that asked for them."""
    left: tuple[LeftPackets, ...] = ()
    """The packets of a sum that were left to the clients."""


class Completion(NamedTuple):
    """A transfer that has ended, from :meth:`sumac.Job.poll_cq`."""

    op: int
    """The transfer: :attr:`sumac.Handle.op`."""
    duration: float
    """Seconds from submission to the end."""
    error: SumacError | None
    loss: Loss | None
    """The elements that are missing, of a ``post_recv`` with a ``loss_bound``."""

    @classmethod
    def of(cls, message: dict[str, Any]) -> Completion:
        """Reads the completion of a message."""
        error = from_daemon(message["error"]) if "error" in message else None
        loss = Loss.of(message["loss"]) if "loss" in message else None
        return cls(message["op"], message["duration_ns"] * 1e-9, error, loss)


def _forbidden(path: str) -> tuple[str, str]:
    """Returns the reason that this user may not connect to a socket, with the remedy."""
    try:
        found = os.stat(path)
        seen = f"its mode is {found.st_mode & 0o777:04o}, its owner user {found.st_uid}, its group {found.st_gid}"
    except OSError:
        seen = "a directory above it is closed to this user"
    return (
        f"user {os.geteuid()} may not connect to {path} ({seen})",
        "join that group (usermod -aG, and log in again), or set socket_group and socket_mode in the daemon's "
        "configuration",
    )


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Returns the file descriptors that came with a message."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


class Connection:
    """Sends requests, and distributes replies and events to the threads that wait for them."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            if isinstance(error, PermissionError):
                raise NotConnected(*_forbidden(path)) from error
            raise NotConnected(
                f"cannot connect to {path}: {error.strerror}", "is the daemon running (sumac daemon --config FILE)?"
            ) from error
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._reader: int | None = None
        self._inbox: deque[tuple[bytes, list[tuple[int, int, bytes]], int, Any]] = deque()
        self._lost: str | None = None
        self._last_id = 0
        self._replies: dict[int, tuple[dict[str, Any], list[int]]] = {}
        self._discarded: set[int] = set()
        self._finished: dict[int, Outcome] = {}
        self._left: dict[int, dict[int, LeftPackets]] = {}
        self._abandoned: set[int] = set()
        self._failures: dict[int, SumacError] = {}
        self._waiting: dict[int, Waiting] = {}

    def call(
        self, cmd: str, fds: tuple[int, ...] = (), request: int | None = None, **fields: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Sends a command and returns its reply: the ``ok`` object, and descriptors that the caller must
        close."""
        request = request or self.next_request()
        try:
            self._send(request, cmd, fds, fields)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The daemon's last message has the reason; the wait returns it.
        except OSError as error:
            raise self._not_sent(cmd, error) from error
        reply = self._wait(lambda: self._replies.pop(request, None), None)
        assert reply is not None
        body, received = reply
        if "error" in body:
            raise from_daemon(body["error"])
        return body.get("ok", {}), received

    def next_request(self) -> int:
        """Returns the number of another request."""
        with self._changed:
            self._check()
            self._last_id += 1
            return self._last_id

    def _send(self, request: int, cmd: str, fds: tuple[int, ...], fields: dict[str, Any]) -> None:
        message = {"id": request, "cmd": cmd}
        message.update((key, value) for key, value in fields.items() if value is not None)
        data = _ENCODER.encode(message).encode()
        if fds:
            socket.send_fds(self._socket, [data], list(fds))
        else:
            self._socket.send(data)

    def withdraw(self, opened: int) -> None:
        """Withdraws an ``open`` that was interrupted, whether it was answered or not.

        Does not wait: the replies are discarded when they are read.
        """
        with self._changed:
            if self._lost is not None or os.getpid() != self._pid:
                return
            self._last_id += 1
            request = self._last_id
            self._discarded |= {opened, request}
            _close_all(self._replies.pop(opened, ({}, []))[1])
        try:
            self._send(request, "withdraw", (), {"open": opened})
        except OSError:
            pass  # The connection has ended, and with it the job.

    def stats(self, job: int | None = None) -> dict[str, Any]:
        """Returns the daemon's counters, or those of one job: all pages of them."""
        counters = self.call("stats", job=job)[0]
        while (after := counters.pop("next", None)) is not None:
            page = self.call("stats", job=job, after=after)[0]
            for more in page["jobs"]:
                last = counters["jobs"][-1] if counters["jobs"] else None
                # Two control planes assign the same number.
                identity = ("name", "job", "epoch")
                if last is not None and all(last[key] == more[key] for key in identity):
                    last["lanes"] += more["lanes"]
                else:
                    counters["jobs"].append(more)
            for part in ("ports", "threads", "parameter_host"):
                if part in page:
                    counters[part] += page[part]
            if "next" in page:
                counters["next"] = page["next"]
        return counters

    @staticmethod
    def _not_sent(cmd: str, error: OSError) -> SumacError:
        """Returns the exception for a command that was not sent. The connection remains usable unless it was
        closed."""
        if error.errno in (errno.EBADF, errno.ENOTCONN):
            return ConnectionLost(error.strerror or str(error))
        hint = f"a message has at most {MAX_MESSAGE} bytes" if error.errno == errno.EMSGSIZE else ""
        return SumacError("not_sent", f"cannot send {cmd} to the daemon: {error.strerror or error}", hint)

    def finished(self, op: int, timeout: float | None) -> Outcome | None:
        """Waits until an operation has ended; returns ``None`` on timeout. Then :meth:`forget_operation`."""
        return self._wait(lambda: self._finished.get(op), timeout)

    def forget_operation(self, op: int) -> None:
        """Discards an outcome that its owner has, so that an interrupt before loses none."""
        self._finished.pop(op, None)

    def read_arrived(self) -> None:
        """Reads and distributes the messages that have arrived. Does not wait."""
        while True:
            with self._changed:
                self._distribute()
                if self._lost is not None or not self._may_read():
                    return
                self._reader = threading.get_ident()
            if not self._read_one(0.0):
                return

    def fileno(self) -> int:
        """Returns the socket's descriptor, for a poll that notices the end of the connection."""
        return self._socket.fileno()

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to have ended."""
        return self._lost is not None

    def abandon(self, op: int) -> None:
        """Discards the outcome of an operation, present or future."""
        with self._changed:  # Reentrant: a finalizer of the thread that holds the lock may run this.
            if self._finished.pop(op, None) is None:
                self._abandoned.add(op)

    def failure(self, job: int) -> SumacError | None:
        """Returns the error of a failed job, if that message has been read."""
        return self._failures.get(job)

    def waiting(self, job: int) -> Waiting | None:
        """Returns the last message about a job's operation that waits for others, if it has been read."""
        return self._waiting.get(job)

    def forget(self, job: int) -> None:
        """Discards the state of a closed job."""
        self._failures.pop(job, None)
        self._waiting.pop(job, None)

    def close(self) -> None:
        """Closes the connection; jobs that are still open fail on all workers."""
        with self._changed:
            self._lose("it was closed")
            self._changed.notify_all()
        self._socket.close()

    def _lose(self, why: str) -> None:
        """Ends the connection at the daemon, too: what it has for this client is released."""
        self._lost = self._lost or why
        if os.getpid() != self._pid:
            return  # It is the parent's.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The daemon has closed it already.

    def _check(self) -> None:
        if self._lost is not None:
            raise ConnectionLost(self._lost)
        if os.getpid() != self._pid:
            raise Forked

    def _wait(self, take: Callable[[], Found | None], timeout: float | None) -> Found | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        first = True
        while True:
            with self._changed:
                self._distribute()
                found = take()
                if found is not None:
                    return found
                self._check()
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                # A wait of zero seconds still reads messages that have arrived.
                if left == 0.0 and not first:
                    return None
                first = False
                if not self._may_read():
                    self._changed.wait(left)
                    continue
                self._reader = threading.get_ident()
            self._read_one(left)

    def _may_read(self) -> bool:
        """Returns whether no other thread reads. This one may have been interrupted while it did."""
        return self._reader in (None, threading.get_ident())

    def _read_one(self, left: float | None) -> bool:
        """Receives one message, without the lock. Returns whether there was one."""
        try:
            return self._receive(left)
        except (OSError, ValueError) as error:
            self._lose(str(error))
            return False
        finally:
            with self._changed:
                self._reader = None
                self._changed.notify_all()

    def _receive(self, left: float | None) -> bool:
        if left is None:
            self._take_message(0)
            return True
        try:
            self._take_message(_NO_WAIT)
            return True
        except BlockingIOError:
            pass
        if not left:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(left * 1000):
            return False
        self._take_message(0)
        return True

    def _take_message(self, flags: int) -> None:
        """Moves one message to the inbox.

        An interrupt such as Ctrl-C comes before the message has left the socket, or after it is in the
        inbox: no bytecode of Python runs between.
        """
        received = (MAX_MESSAGE,), (_DESCRIPTOR_SPACE,), (_CLOSE_ON_EXEC | flags,)
        try:
            self._inbox.extend(map(self._socket.recvmsg, *received))
        except ConnectionResetError:
            # The kernel reports this once if the daemon closed with unread requests; its last message
            # follows.
            self._inbox.extend(map(self._socket.recvmsg, *received))

    def _distribute(self) -> None:
        """Dispatches what was received; the lock is held. An interrupt repeats a message, and loses none."""
        while self._inbox:
            data, ancillary, flags, _ = self._inbox[0]
            fds = _descriptors(ancillary)
            try:
                if flags & _TRUNCATED:
                    _close_all(fds)
                    self._lose("this process may have no more files open (ulimit -n)")
                elif data:
                    self._dispatch(json.loads(data.decode()), fds)
                else:
                    self._lose("the daemon closed it")
            except ValueError as error:
                self._lose(f"a message is not JSON: {error}")
            self._inbox.popleft()

    def _dispatch(self, message: dict[str, Any], fds: list[int]) -> None:
        event = message.get("event")
        if event is None and message.get("id") is not None:
            if message["id"] in self._discarded:
                self._discarded.discard(message["id"])
                _close_all(fds)
            else:
                self._replies[message["id"]] = (message, fds)
        elif event is None:
            # A reply without an id refuses the connection as a whole.
            self._lose(str(from_daemon(message.get("error", {}))))
        elif event == "completed":
            self._complete(message)
        elif event == "left":
            left = message["left"]
            packets = LeftPackets(left["elements"], left["first"], bytes.fromhex(left["bits"]))
            # By the first packet: an interrupt may repeat the message.
            self._left.setdefault(message["op"], {})[packets.first] = packets
        elif event == "job_failed":
            self._waiting.pop(message["job"], None)
            self._failures[message["job"]] = from_daemon(message["error"])
        elif event == "waiting":
            self._waiting[message["job"]] = Waiting(message["message"], tuple(message["ranks"]))
            _LOG.warning("%s", message["message"])

    def _complete(self, message: dict[str, Any]) -> None:
        op = message["op"]
        self._waiting.pop(message["job"], None)
        left = tuple(self._left.pop(op, {}).values())
        if op in self._abandoned:
            self._abandoned.discard(op)
            return
        error = from_daemon(message["error"]) if "error" in message else None
        missed = tuple((first, end) for first, end in message.get("missed", ()))
        loss = Loss.of(message["loss"]) if "loss" in message else None
        timing = Timing.of(message["timing"]) if "timing" in message else None
        self._finished[op] = Outcome(message["duration_ns"] * 1e-9, error, missed, loss, timing, left)
