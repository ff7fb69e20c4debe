"""The suites: what is in the machine, its NICs, and the time that it may take."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from image import Image
from machine import Machine, Nic, mac

GUEST = Path(__file__).with_name("guest")
ELEMENTS = 100_000
_VIRTIO = "virtio-net-pci,disable-legacy=on"
_MODULES = ("virtio_pci", "virtio_net", "igb", "af_packet")


class Suite(NamedTuple):
    """Scripts of the guest, and what they need."""

    name: str
    deadline: int
    """Seconds, under emulation beside other work."""
    is_cloud: bool
    """Whether the small kernel without drivers of hardware has all that it needs."""
    modules: tuple[str, ...]
    drivers: tuple[tuple[str, str], ...] = ()
    """Names of drivers, and QEMU's devices; two NICs of each."""
    scripts: tuple[str, ...] = ()
    """One of the suite's name, unless they are named."""
    is_apart: bool = False
    """Whether each NIC is in a machine of its own: the aggregator's, and the workers' by rank."""
    tests: tuple[str, ...] = ()
    """Arguments of `cargo test`: the tests that the suite runs."""
    has_disk: bool = False
    """Whether the script runs below systemd, on a disk with Debian and Sumac's packages."""

    def nics(self) -> list[Nic]:
        if not self.drivers:
            return []
        workers = [Nic(f"{name}{rank}", device) for name, device in self.drivers for rank in (0, 1)]
        return [Nic("agg0", _VIRTIO), *workers]

    def machines(self) -> list[Machine]:
        nics = list(enumerate(self.nics()))
        if not self.is_apart:
            return [Machine("", nics)]
        cables = [f"cable{number}" for number, _ in nics[1:]]
        workers = [Machine(str(rank), [nic], [cable])
                   for rank, (nic, cable) in enumerate(zip(nics[1:], cables))]
        return [Machine("agg", nics[:1], cables), *workers]

    def add_to(self, image: Image) -> None:
        """Adds the suite's script, and the files that it reads."""
        scripts = ("result", *(self.scripts or (self.name,)))
        image.add("/suite.sh", b"".join((GUEST / f"{script}.sh").read_bytes() for script in scripts))
        image.add("/name", f"{self.name}\n".encode())
        names = [f"{mac(number)} {nic.name}\n" for number, nic in enumerate(self.nics())]
        image.add("/nics", "".join(names).encode())
        image.add("/drivers", "".join(f"{name} {name}0 {name}1\n" for name, _ in self.drivers).encode())
        if self.has_disk:
            for name, folder in (("vm.service", "/etc/systemd/system"), ("probe.pl", "")):
                image.add(f"{folder}/{name}", (GUEST / name).read_bytes())
        for path, content in arrays():
            image.add(path, content)


_LAB = ("llc", "stp", "bridge", "veth", "sch_tbf", "sch_netem",
        "nf_tables", "nft_numgen", "nft_fwd_netdev")

# The IOMMU's mappings are what virtio-net's zero-copy asks for.
_WITH_IOMMU = ("virtio", f"{_VIRTIO},iommu_platform=on")

SUITES = (
    # The part of the next two that is in `make test`.
    Suite("smoke", 600, True, (*_MODULES, *_LAB), (_WITH_IOMMU,), ("daemons", "hosts", "zerocopy", "labs")),
    Suite("labs", 900, True, _LAB),
    # Tables of packets, by the kernel's own test run of the programs.
    Suite(
        "programs", 7200, True, _LAB, scripts=("tests",),
        tests=(
            *("-p", "sumac-agg", "-p", "sumac-hostprog"),
            *(word for name in ("slots", "dynamic", "hostile", "jumbo", "levels", "vectors", "verdicts")
              for word in ("--test", name)),
        ),
    ),
    # What the processor may have a part in: words, conversions, shared memory, system calls.
    Suite(
        "units", 1500, True, _LAB, scripts=("tests",),
        tests=(
            "--lib",
            *(word for name in ("wire", "transport", "values", "parameter", "memory", "job", "host", "xsk",
                                "sandbox", "agg-host", "udp", "netutil", "loader", "client", "api")
              for word in ("-p", f"sumac-{name}")),
        ),
    ),
    Suite(
        "zerocopy", 1500, False, _MODULES,
        (
            _WITH_IOMMU,
            ("plain", _VIRTIO),
            ("igb", "igb"),
        ),
        ("daemons", "hosts", "zerocopy"),
    ),
    Suite("three", 1500, True, _MODULES, (("w", _WITH_IOMMU[1]),), ("daemons", "three"), is_apart=True),
    Suite("jumbo", 1500, False, _MODULES, (_WITH_IOMMU, ("igb", "igb")), ("daemons", "hosts", "jumbo")),
    Suite(
        "queues", 1500, False, (*_LAB, "sch_prio", "sch_red", "cls_u32", "af_packet"),
        scripts=("switch", "daemons", "hosts", "queues"),
    ),
    Suite("events", 1500, False, _MODULES, (_WITH_IOMMU, ("igb", "igb")), ("daemons", "hosts", "events")),
    Suite(
        "devices", 900, False, (*_MODULES, "8021q", "bonding"), (("plain", _VIRTIO),),
        ("daemons", "hosts", "devices"),
    ),
    Suite("systemd", 1800, True, ("virtio_pci", "virtio_blk", "ext4", "veth", "af_alg"),
          scripts=("daemons", "systemd"), has_disk=True),
)


def arrays() -> Iterator[tuple[str, bytes]]:
    """Yields the files of two workers' values and of their sum, 32-bit integers in numpy's format, and the
    header of forty times as many."""
    for name, factor in (("in0", 1), ("in1", 3), ("sum", 4)):
        values = struct.pack(f"<{ELEMENTS}i", *(factor * index for index in range(ELEMENTS)))
        yield f"/data/{name}.npy", header(ELEMENTS) + values
    yield "/data/large.npy", header(40 * ELEMENTS)


def header(elements: int) -> bytes:
    """Returns numpy's header of a file of 32-bit integers, 128 bytes."""
    text = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({elements},), }}"
    padded = text.ljust(128 - 10 - 1).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded
