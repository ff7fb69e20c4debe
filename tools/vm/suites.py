"""The suites: what is in the machine, its NICs, and the time that it may take."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from image import Image
from machine import Nic, mac

GUEST = Path(__file__).with_name("guest")
ELEMENTS = 100_000
_VIRTIO = "virtio-net-pci,disable-legacy=on"
_MODULES = ("virtio_pci", "virtio_net", "igb", "af_packet")


class Suite(NamedTuple):
    """A script of the guest, and what it needs."""

    name: str
    deadline: int
    """Seconds, under emulation beside other work."""
    is_cloud: bool
    """Whether the small kernel without drivers of hardware has all that it needs."""
    modules: tuple[str, ...]
    drivers: tuple[tuple[str, str], ...] = ()
    """Names of drivers, and QEMU's devices; two NICs of each."""

    def nics(self) -> list[Nic]:
        if not self.drivers:
            return []
        workers = [Nic(f"{name}{rank}", device) for name, device in self.drivers for rank in (0, 1)]
        return [Nic("agg0", _VIRTIO), *workers]

    def add_to(self, image: Image) -> None:
        """Adds the suite's script, and the files that it reads."""
        image.add("/suite.sh", (GUEST / f"{self.name}.sh").read_bytes())
        names = [f"{mac(number)} {nic.name}\n" for number, nic in enumerate(self.nics())]
        image.add("/nics", "".join(names).encode())
        image.add("/drivers", "".join(f"{name} {name}0 {name}1\n" for name, _ in self.drivers).encode())
        for path, content in arrays():
            image.add(path, content)


SUITES = (
    Suite("labs", 900, True, ("llc", "stp", "bridge", "veth", "sch_tbf")),
    Suite(
        "zerocopy", 1500, False, _MODULES,
        (
            # The IOMMU's mappings are what virtio-net's zero-copy asks for.
            ("virtio", f"{_VIRTIO},iommu_platform=on"),
            ("plain", _VIRTIO),
            ("igb", "igb"),
        ),
    ),
)


def arrays() -> Iterator[tuple[str, bytes]]:
    """Yields the files of two workers' values and of their sum, 32-bit integers in numpy's format."""
    for name, factor in (("in0", 1), ("in1", 3), ("sum", 4)):
        header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({ELEMENTS},), }}"
        padded = header.ljust(128 - 10 - 1).encode() + b"\n"
        values = struct.pack(f"<{ELEMENTS}i", *(factor * index for index in range(ELEMENTS)))
        yield f"/data/{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + values
