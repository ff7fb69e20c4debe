"""The processors that are emulated: the names that Debian, Rust and QEMU have for them."""

from __future__ import annotations

from typing import NamedTuple


class Architecture(NamedTuple):
    """A processor."""

    name: str
    """Debian's name."""
    gnu: str
    """The name of its libraries' folder, and the prefix of GNU's tools for it."""
    rust: str
    """The target of Rust."""
    qemu: str
    qemu_package: str
    machine: tuple[str, ...]
    """QEMU's arguments for a machine with PCI Express."""
    console: str

    @property
    def is_native(self) -> bool:
        """Whether the machine that emulates has this processor, too: its programs and libraries are used."""
        return self is AMD64


AMD64 = Architecture(
    "amd64", "x86_64-linux-gnu", "x86_64-unknown-linux-gnu", "qemu-system-x86_64", "qemu-system-x86",
    ("-machine", "q35"), "ttyS0",
)
ARM64 = Architecture(
    "arm64", "aarch64-linux-gnu", "aarch64-unknown-linux-gnu", "qemu-system-aarch64", "qemu-system-arm",
    ("-machine", "virt,gic-version=3"), "ttyAMA0",
)
ARCHITECTURES = {each.name: each for each in (AMD64, ARM64)}
