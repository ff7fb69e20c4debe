#!/usr/bin/python3
"""The cost of sending results, by the way of sending them:

  sudo tools/bench/send.py                 4 receivers, 1 GB in runs of 44 packets, three rounds
  sudo tools/bench/send.py --mb 100 --json

A sender in one network namespace, its receivers in another behind a veth. Each way delivers the same bytes to
all receivers, in runs of packets (UDP_SEGMENT); the ways take turns. Printed is the CPU of the sender and of
both for a delivered GB: medians over the rounds. A receiver reads what comes until it is told to stop; what
was lost is not counted as delivered.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Event, Pipe, Process
from typing import Any

PACKET = 1472
"""Payload of a packet at MTU 1500."""
PORT = 17600
GROUP = "239.77.0.1"
SENDER, RECEIVERS = "10.77.1.1", "10.77.1.2"
UDP_SEGMENT, UDP_GRO, SO_ZEROCOPY, MSG_ZEROCOPY = 103, 104, 60, 0x4000000
BUFFER = 8 << 20
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
PENDING = 16
"""Messages whose pages the kernel may hold at a time."""

Send = Callable[[bytes], None]


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Lab:
    """Two namespaces with a veth between them; they are removed at the end."""

    def __init__(self) -> None:
        self.names = [f"sumac-send-{side}-{os.getpid()}" for side in "ab"]

    def __enter__(self) -> list[str]:
        first, second = self.names
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "-n", first, "link", "add", "veth0", "type", "veth", "peer", "veth0", "netns", second)
        for name, address in zip(self.names, (SENDER, RECEIVERS)):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "veth0")
            run("ip", "-n", name, "link", "set", "veth0", "up")
        return self.names

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(("ip", "netns", "del", name), check=False)


def enter(name: str) -> None:
    """Moves this process to a namespace."""
    with open(f"/run/netns/{name}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {name}")


def receive(name: str, count: int, is_ready: Any, stop: Any, answer: Any) -> None:
    """A process with the sockets of all receivers: sends the bytes that came, and its CPU seconds."""
    enter(name)
    poll = select.epoll()
    sockets = {}
    for number in range(2 * count):
        its = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        its.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        if number < count:
            its.bind((RECEIVERS, PORT + number))
        else:
            its.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            its.bind((GROUP, PORT + count))
            member = socket.inet_aton(GROUP) + socket.inet_aton(RECEIVERS)
            its.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        its.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        its.setblocking(False)
        poll.register(its, select.EPOLLIN)
        sockets[its.fileno()] = its
    buffer = bytearray(1 << 16)
    received, before = 0, time.process_time()
    is_ready.set()
    while True:
        events = poll.poll(0.05)
        if not events and stop.is_set():
            break
        for fd, _ in events:
            try:
                received += sockets[fd].recv_into(buffer)
            except BlockingIOError:
                pass
    answer.send((received, time.process_time() - before))


def opened() -> socket.socket:
    """A socket that sends runs of packets."""
    its = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    its.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PACKET)
    its.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(SENDER))
    its.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    its.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
    return its


def copies(count: int) -> Send:
    """A message for each receiver, which the kernel copies."""
    its = opened()

    def send(run_of: bytes) -> None:
        for number in range(count):
            its.sendto(run_of, (RECEIVERS, PORT + number))

    return send


def multicast(count: int) -> Send:
    """One message to the group that all receivers are in."""
    its = opened()
    return lambda run_of: void(its.sendto(run_of, (GROUP, PORT + count)))


def void(_: object) -> None:
    """For what a send returns."""


def zero_copy(count: int) -> Send:
    """A message for each receiver with MSG_ZEROCOPY, and the kernel's notices that it has left."""
    its = opened()
    its.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    pending = 0

    def reap(is_waiting: bool) -> None:
        nonlocal pending
        poll = select.poll()
        poll.register(its, 0)
        while pending and poll.poll(1000 if is_waiting else 0):
            _, ancillary, _, _ = its.recvmsg(0, 512, socket.MSG_ERRQUEUE)
            for _, _, data in ancillary:
                # struct sock_extended_err: errno, origin, type, code, pad, info, data.
                _, origin, _, _, _, first, last = struct.unpack_from("=IBBBBII", data)
                if origin == 5:
                    pending -= (last - first) % (1 << 32) + 1
            is_waiting = False

    def send(run_of: bytes) -> None:
        nonlocal pending
        for number in range(count):
            its.sendmsg([run_of], [], MSG_ZEROCOPY, (RECEIVERS, PORT + number))
            pending += 1
        reap(pending >= PENDING)

    return send


class Ring:
    """An io_uring with as many entries as messages may be under way."""

    SETUP, ENTER, GET_EVENTS, SEND_ZC = 425, 426, 1, 47
    MORE, NOTICE = 2, 8

    def __init__(self, entries: int) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        params = (ctypes.c_uint32 * 30)()
        self.fd = self.libc.syscall(self.SETUP, entries, ctypes.byref(params))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        self.entries, taken = params[0], params[1]
        # Offsets: of the submission ring from word 10, of the completion ring from word 20.
        self.sq, self.cq = list(params[10:17]), list(params[20:27])
        size = max(self.sq[6] + self.entries * 4, self.cq[5] + taken * 16)
        self.rings = mmap.mmap(self.fd, size)
        self.sqes = mmap.mmap(self.fd, self.entries * 64, offset=0x10000000)
        self.under_way = 0

    def word(self, at: int) -> int:
        return int(struct.unpack_from("=I", self.rings, at)[0])

    def push(self, socket_of: int, address: int, length: int, to: int) -> None:
        """Enters a send without a copy of `length` bytes at `address`; `to`: of a sockaddr_in."""
        tail = self.word(self.sq[1])
        slot = tail & self.word(self.sq[2])
        # opcode, flags, ioprio, fd, addr2, addr, len, msg_flags, user_data, buf_index, personality, addr_len.
        struct.pack_into(
            "=BBHiQQIIQHHHHQQ", self.sqes, slot * 64, self.SEND_ZC, 0, 0, socket_of, to, address, length, 0,
            0, 0, 0, 16, 0, 0, 0,
        )
        struct.pack_into("=I", self.rings, self.sq[6] + slot * 4, slot)
        struct.pack_into("=I", self.rings, self.sq[1], (tail + 1) & 0xffffffff)

    def submit(self, count: int, most: int) -> None:
        """Submits, and waits until at most so many messages are under way."""
        self.under_way += count
        wait = 1 if self.under_way > most else 0
        if self.libc.syscall(self.ENTER, self.fd, count, wait, self.GET_EVENTS, None, 0) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        while True:
            self.reap()
            if self.under_way <= most:
                return
            if self.libc.syscall(self.ENTER, self.fd, 0, 1, self.GET_EVENTS, None, 0) < 0:
                raise OSError(ctypes.get_errno(), "io_uring_enter")

    def reap(self) -> None:
        """A send has a completion, and a notice once its pages are free again."""
        head, tail, mask = self.word(self.cq[0]), self.word(self.cq[1]), self.word(self.cq[2])
        while head != tail:
            _, result, flags = struct.unpack_from("=QiI", self.rings, self.cq[5] + (head & mask) * 16)
            if result < 0:
                raise OSError(-result, "a send by io_uring")
            if flags & self.NOTICE or not flags & self.MORE:
                self.under_way -= 1
            head = (head + 1) & 0xffffffff
        struct.pack_into("=I", self.rings, self.cq[0], head)


def io_uring(count: int) -> Send:
    """A message for each receiver with IORING_OP_SEND_ZC, all by one system call."""
    its, ring = opened(), Ring(64)
    to = [struct.pack("!HH4s8x", 0, PORT + number, socket.inet_aton(RECEIVERS)) for number in range(count)]
    addresses = [
        ctypes.create_string_buffer(struct.pack("=H", socket.AF_INET) + address[2:], 16) for address in to
    ]

    def send(run_of: bytes) -> None:
        at = ctypes.cast(ctypes.c_char_p(run_of), ctypes.c_void_p).value or 0
        for address in addresses:
            ring.push(its.fileno(), at, len(run_of), ctypes.addressof(address))
        ring.submit(count, PENDING)

    return send


WAYS: dict[str, Callable[[int], Send]] = {
    "sendmsg": copies, "MSG_ZEROCOPY": zero_copy, "io_uring SEND_ZC": io_uring, "multicast": multicast,
}


def send_all(name: str, way: str, options: argparse.Namespace, answer: Any) -> None:
    """A process that sends all bytes one way, and its CPU seconds."""
    enter(name)
    send = WAYS[way](options.receivers)
    run_of = os.urandom(PACKET * options.packets)
    # As many bytes for each receiver, with pauses in which they read.
    runs = options.mb * 1_000_000 // (len(run_of) * options.receivers)
    before = time.process_time()
    for number in range(runs):
        send(run_of)
        if number % 8 == 7:
            time.sleep(0.001)
    answer.send((runs * len(run_of) * options.receivers, time.process_time() - before))


def measure(names: list[str], way: str, options: argparse.Namespace) -> dict[str, float]:
    """One way once: CPU seconds for a delivered GB, and the share that was delivered."""
    is_ready, stop = Event(), Event()
    (received_end, received), (sent_end, sent) = Pipe(False), Pipe(False)
    receiver = Process(target=receive, args=(names[1], options.receivers, is_ready, stop, received))
    receiver.start()
    if not is_ready.wait(10):
        raise TimeoutError("the receivers do not open their sockets")
    sender = Process(target=send_all, args=(names[0], way, options, sent))
    sender.start()
    received.close()
    sent.close()
    try:
        sent_bytes, of_sender = sent_end.recv()
    except EOFError:
        raise RuntimeError(f"{way}: the sender ended") from None
    finally:
        stop.set()
    received_bytes, of_receiver = received_end.recv()
    sender.join()
    receiver.join()
    gb = received_bytes / 1e9
    return {
        "sender": of_sender / gb, "both": (of_sender + of_receiver) / gb,
        "delivered": received_bytes / sent_bytes,
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--receivers", type=int, default=4, metavar="N", help="receivers, each of all bytes")
    parser.add_argument("--packets", type=int, default=44, metavar="N", help="packets of a run, 44 at most")
    parser.add_argument("--mb", type=int, default=1000, metavar="N", help="MB in all of a round")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="times that each way is measured")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if os.geteuid() != 0:
        print("send: making network namespaces needs root", file=sys.stderr)
        return 3
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with Lab() as names:
        for _ in range(options.rounds):
            for way, measured in found.items():
                measured.append(measure(names, way, options))
    medians = {
        way: {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        for way, measured in found.items()
    }
    if options.json:
        print(json.dumps(medians))
        return 0
    print(f"{options.receivers} receivers, runs of {options.packets} packets, {options.mb} MB, "
          f"medians of {options.rounds}")
    print(f"{'':18}{'sender, s per GB':>18}{'both':>8}{'delivered':>11}")
    for way, of in medians.items():
        print(f"{way:18}{of['sender']:18.3f}{of['both']:8.3f}{of['delivered']:11.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
