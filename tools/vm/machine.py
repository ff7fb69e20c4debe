"""An emulated machine: QEMU, its NICs, and what its console says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from architecture import Architecture

SHOWN = 40
"""The last lines of the console that are printed when a machine does not end as it should."""
_OOPS = re.compile(r"^(?:\[ *[\d.]+\] )?(?:Oops|BUG|general protection fault|int3|Kernel panic)\b.*", re.M)


class Nic(NamedTuple):
    """A network card on the hub."""

    name: str
    device: str
    """QEMU's device with its properties."""


class Emulator(NamedTuple):
    """QEMU's program, with the folders of its libraries and firmware where it is not installed."""

    architecture: Architecture
    program: Path
    root: Optional[Path] = None

    def command(self) -> list[str]:
        folders = ("usr/share/qemu", "usr/share/seabios")
        return [str(self.program), *(argument for folder in folders if self.root
                                     for argument in ("-L", str(self.root / folder)))]

    def environment(self) -> dict[str, str]:
        libraries = f"{self.root}/usr/lib/x86_64-linux-gnu" if self.root else ""
        return {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)


def installed(architecture: Architecture) -> Optional[Emulator]:
    program = shutil.which(architecture.qemu)
    return Emulator(architecture, Path(program)) if program else None


class Outcome(NamedTuple):
    """The end of a machine."""

    console: str
    is_complete: bool
    """Whether it came to its end in time."""

    def results(self) -> list[tuple[str, str, str]]:
        """Returns case, outcome and detail of each."""
        found = re.findall(r"^RESULT\|([^|\n]*)\|([^|\n]*)\|([^\n]*)$", self.console, re.M)
        return [(case, outcome, detail.strip()) for case, outcome, detail in found]

    def oops(self) -> Optional[str]:
        """Returns the line in which the kernel reports its own fault."""
        found = _OOPS.search(self.console)
        return found[0] if found else None

    def tail(self) -> list[str]:
        return self.console.splitlines()[-SHOWN:]


def mac(number: int) -> str:
    return f"52:54:00:00:00:{number:02x}"


def arguments(nics: Sequence[Nic]) -> list[str]:
    """Returns QEMU's arguments for NICs on one hub."""
    made = []
    for number, nic in enumerate(nics):
        made += ["-netdev", f"hubport,id=port{number},hubid=0"]
        # A root port each: the virtual functions of two igb on one bus collide.
        made += ["-device", f"pcie-root-port,id=root{number},chassis={number + 1}"]
        properties = f"bus=root{number},netdev=port{number},mac={mac(number)},romfile="
        made += ["-device", f"{nic.device},{properties}"]
    return made


def command(emulator: Emulator, kernel: Path, initramfs: Path, nics: Sequence[Nic]) -> list[str]:
    """Returns the command line of a machine whose console is standard output."""
    return [
        *emulator.command(), *emulator.architecture.machine, "-accel", "tcg", "-cpu", "max",
        "-smp", "2", "-m", "2048",
        "-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio",
        "-kernel", str(kernel), "-initrd", str(initramfs),
        "-append", f"console={emulator.architecture.console} quiet panic=-1 net.ifnames=0", *arguments(nics),
    ]


def boot(
    emulator: Emulator, kernel: Path, initramfs: Path, nics: Sequence[Nic], deadline: int, log: Path
) -> Outcome:
    """Runs a machine until it powers off, for at most `deadline` seconds."""
    is_complete = True
    with log.open("wb") as console:
        try:
            subprocess.run(
                command(emulator, kernel, initramfs, nics), env=emulator.environment(),
                stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, timeout=deadline,
                check=False,
            )
        except subprocess.TimeoutExpired:
            is_complete = False
    text = log.read_text(errors="replace").replace("\r", "")
    return Outcome(text, is_complete and "vm: complete" in text)
