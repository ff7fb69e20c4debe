"""Emulated machines: QEMU, their NICs, and what their consoles say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
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


class Machine(NamedTuple):
    """A machine of a suite."""

    role: str
    """The variable $role of its script; empty where there is one machine."""
    nics: Sequence[tuple[int, Nic]]
    """With their numbers among those of all machines."""
    cables: Sequence[str] = ()
    """Names of those to other machines; they end in the first one."""


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


def arguments(machine: Machine, folder: Path, is_first: bool) -> list[str]:
    """Returns QEMU's arguments for NICs and cables on one hub; the cables' sockets are in `folder`."""
    made = []
    for number, nic in machine.nics:
        made += ["-netdev", f"hubport,id=port{number},hubid=0"]
        # A root port each: the virtual functions of two igb on one bus collide.
        made += ["-device", f"pcie-root-port,id=root{number},chassis={number + 1}"]
        properties = f"bus=root{number},netdev=port{number},mac={mac(number)},romfile="
        made += ["-device", f"{nic.device},{properties}"]
    for cable in machine.cables:
        server = "on" if is_first else "off"
        made += ["-netdev", f"stream,id={cable},server={server},addr.type=unix,addr.path={folder / cable}"]
        made += ["-netdev", f"hubport,id=to-{cable},hubid=0,netdev={cable}"]
    return made


class Boot(NamedTuple):
    """The files that machines start from."""

    kernel: Path
    initramfs: Path
    disk: Optional[Path] = None

    def arguments(self) -> list[str]:
        made = ["-kernel", str(self.kernel), "-initrd", str(self.initramfs)]
        if self.disk is not None:
            # What a machine writes is gone with it: a second boot has the same disk.
            drive = f"file={self.disk},format=raw,if=none,id=disk,snapshot=on"
            made += ["-drive", drive, "-device", "virtio-blk-pci,drive=disk"]
        return made


def command(emulator: Emulator, files: Boot, role: str) -> list[str]:
    """Returns the command line of a machine whose console is standard output."""
    # The kernel hands what it does not know to the first process, as a variable.
    parameters = f"console={emulator.architecture.console} quiet panic=-1 net.ifnames=0 role={role}"
    return [
        *emulator.command(), *emulator.architecture.machine, "-accel", "tcg", "-cpu", "max",
        "-smp", "2", "-m", "2048",
        "-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio",
        *files.arguments(), "-append", parameters,
    ]


def log_of(machine: Machine, log: Path) -> Path:
    """Returns the file of a machine's console, for the suite's file `log`."""
    return log.with_name(f"{log.stem}-{machine.role}.log") if machine.role else log


def boot(
    emulator: Emulator, files: Boot, machines: Sequence[Machine], deadline: int, log: Path
) -> Outcome:
    """Runs machines until they power off, for at most `deadline` seconds. Of several the first serves the
    others, and is ended with them."""
    end = time.monotonic() + deadline
    logs = [log_of(machine, log) for machine in machines]
    running: list[subprocess.Popen[bytes]] = []
    is_complete = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            for machine, path in zip(machines, logs):
                line = command(emulator, files, machine.role)
                line += arguments(machine, Path(folder), is_first=not running)
                with path.open("wb") as console:
                    running.append(subprocess.Popen(
                        line, env=emulator.environment(), stdin=subprocess.DEVNULL, stdout=console,
                        stderr=subprocess.STDOUT,
                    ))
                _await_sockets([Path(folder, cable) for cable in machine.cables], running[0], end)
            for process in running[1:] or running:
                process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            is_complete = False
        finally:
            for process in running:
                process.kill()
                process.wait()
    texts = [path.read_text(errors="replace").replace("\r", "") for path in logs]
    is_complete = is_complete and all("vm: complete" in text for text in texts[1:] or texts)
    return Outcome("".join(texts), is_complete)


def _await_sockets(paths: Sequence[Path], first: subprocess.Popen[bytes], end: float) -> None:
    """Waits until the first machine listens at them, or has ended."""
    while not all(path.exists() for path in paths) and first.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
