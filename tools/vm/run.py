#!/usr/bin/python3
"""Runs Sumac on kernels of Debian's archive, in a machine under software emulation.

  tools/vm/run.py                                the suites, each on the latest kernel of 7.2
  tools/vm/run.py --kernel 6.1 --suite labs      one suite on the latest 6.1
  tools/vm/run.py --list                         the suites, and the versions that the archive has

Kernels and QEMU are downloaded into target/vm and not installed. The machine's programs are those of
SUMAC_BIN_DIR, else of target/release. Emulated: it shows what loads, binds and sums, and nothing about speed.

Exit codes: 0 all passed, or nothing could be run (the last line is `SKIP vm: why`), 1 a case failed, 2 wrong
usage, 3 a program is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Optional

import kernels
from archive import Archive, Unreachable
from image import Image, find
from machine import QEMU, Emulator, Outcome, boot, installed
from suites import GUEST, SUITES, Suite

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "target" / "vm"
KERNEL = "7.2"
SUMAC = ("sumac", "sumac-agg", "sumac-lab")
TOOLS = ("bash", "ip", "tc", "nft", "ethtool", "nsenter", "ss", "sysctl", "timeout")


def emulator(archive: Archive) -> tuple[Emulator, Path]:
    """Returns QEMU, of bookworm-backports where that can be had, and the folder of a static busybox."""
    root = CACHE / "qemu"
    packages = ("qemu-system-x86", "busybox-static")
    archive.unpack_with_libraries("bookworm-backports", packages, root)
    program = root / "usr" / "bin" / QEMU
    # Both are in the machine already where they are installed.
    found = Emulator(program, root) if program.exists() else installed()
    busybox = next((path for path in (root / "bin/busybox", find("busybox")) if path and path.exists()), None)
    if found is None or busybox is None:
        raise Unreachable(f"no {QEMU} and busybox in {root}; remove it to download them again")
    return found, busybox


def run(suite: Suite, version: str, archive: Archive, programs: Path) -> bool:
    """Runs a suite on a kernel and prints its table; returns whether all cases passed."""
    names = archive.names(kernels.PATTERN)
    kernel = kernels.choose(version, suite.is_cloud, names)
    if kernel is None:
        known = ", ".join(kernels.versions(names))
        raise SystemExit(f"run.py: Debian's archive has no kernel {version}; it has {known}")
    tree = CACHE / kernel.release
    archive.unpack(kernel.packages, tree)
    qemu, busybox = emulator(archive)
    image = Image()
    for folder in ("/proc", "/sys", "/dev", "/run", "/tmp", "/etc", "/usr", "/usr/bin"):
        image.folder(folder)
    image.add("/init", (GUEST / "init").read_bytes(), is_program=True)
    image.add("/bin/busybox", busybox.read_bytes(), is_program=True)
    for name in SUMAC:
        image.program(programs / name, f"/usr/bin/{name}")
    for name in TOOLS:
        if (path := find(name)) is not None:
            image.program(path, f"/usr/bin/{name}")
    image.modules(tree, suite.modules)
    suite.add_to(image)
    initramfs = CACHE / "initramfs.gz"
    image.write(initramfs)
    [vmlinuz] = tree.glob("**/vmlinuz*")
    outcome = Outcome("", False)
    for attempt in (1, 2):
        print(f"== {suite.name} on Linux {kernel.release}, programs of {programs}", flush=True)
        begin = time.monotonic()
        log = CACHE / f"{suite.name}-{kernel.release}.log"
        outcome = boot(qemu, vmlinuz, initramfs, suite.nics(), suite.deadline, log)
        oops = outcome.oops()
        print(f"== {time.monotonic() - begin:.0f} s; console: {log}")
        if oops is None or attempt == 2:
            break
        print(f"== the guest's kernel failed ({oops}); once more")
    return report(outcome)


def report(outcome: Outcome) -> bool:
    results = outcome.results()
    failed = [result for result in results if result[1] == "failed"]
    if failed or not outcome.is_complete:
        print("== the console's last lines:", *outcome.tail(), sep="\n")
    for case, ending, detail in results:
        print(f"{case:24} {ending:8} {detail}")
    if not outcome.is_complete:
        print("not complete: the machine did not come to its end in time")
    return outcome.is_complete and bool(results) and not failed


def main(arguments: Optional[list[str]] = None) -> int:
    """Runs the command line; gives the exit code."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--kernel", default=KERNEL, help=f"a version such as 6.12 or 7.2.9 [{KERNEL}]")
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES], help="one suite [all]")
    parser.add_argument("--list", action="store_true", help="name suites and versions, and run nothing")
    options = parser.parse_args(arguments)
    programs = Path(os.environ.get("SUMAC_BIN_DIR") or ROOT / "target" / "release").resolve()
    if missing := [name for name in SUMAC if not (programs / name).exists()]:
        print(f"run.py: {', '.join(missing)} not in {programs}: make equipment", file=sys.stderr)
        return 3
    try:
        archive = Archive(CACHE / "archive")
        archive.update()
        if options.list:
            print("suites:", ", ".join(suite.name for suite in SUITES))
            print("kernels:", ", ".join(kernels.versions(archive.names(kernels.PATTERN))))
            return 0
        chosen = [suite for suite in SUITES if options.suite in (None, suite.name)]
        passed = [run(suite, options.kernel, archive, programs) for suite in chosen]
    except Unreachable as error:
        print(f"SKIP vm: {error}")
        return 0
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
