#!/usr/bin/python3
"""Runs Sumac on kernels of Debian's archive, in a machine under software emulation.

  tools/vm/run.py                                the suites, each on the latest kernel of 7.2
  tools/vm/run.py --kernel 6.1 --suite labs      one suite on the latest 6.1
  tools/vm/run.py --architecture arm64           another processor, with programs by tools/vm/cross.py
  tools/vm/run.py --record                       results go into the tables of docs/deployment/hosts.md
  tools/vm/run.py --list                         the suites, and the versions that the archive has

Kernels and QEMU are downloaded into target/vm and not installed. The machine's programs are those of
SUMAC_BIN_DIR, else of target/release (arm64: target/aarch64-unknown-linux-gnu/release). Emulated: it shows
what loads, binds and sums, and nothing about speed.

Exit codes: 0 all passed, or nothing could be run (the last line is `SKIP vm: why`), 1 a case failed, 2 wrong
usage, 3 a program is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

import cross
import disk
import kernels
import machine
import matrix
from architecture import AMD64, ARCHITECTURES, Architecture
from archive import Archive, Unreachable
from cross import CACHE, ROOT
from image import Image, find
from machine import Boot, Emulator, Outcome, boot, installed
from suites import GUEST, SUITES, Suite

KERNEL = "7.2"
SUMAC = ("sumac", "sumac-agg", "sumac-lab")
TOOLS = ("bash", "ip", "tc", "nft", "ethtool", "nsenter", "ss", "sysctl", "timeout")
TOOL_PACKAGES = (
    "bash", "iproute2", "nftables", "ethtool", "util-linux", "procps", "coreutils", "busybox-static",
)
"""The packages of those tools, for another processor."""


class Guests:
    """Kernels, emulator and programs of the machines of one architecture."""

    def __init__(self, architecture: Architecture, programs: Path, is_recorded: bool) -> None:
        self._architecture = architecture
        self._is_recorded = is_recorded
        self._programs = programs
        # QEMU is this machine's program, whatever it emulates.
        self._own = Archive(CACHE / "archive")
        self._own.update()
        self._archive = self._own
        if not architecture.is_native:
            self._archive = Archive(CACHE / f"archive-{architecture.name}", architecture)
            self._archive.update()

    def versions(self) -> list[str]:
        """Returns the versions of kernels that the archive has."""
        return kernels.versions(self._archive.names(kernels.PATTERN))

    def run(self, suite: Suite, version: str) -> bool:
        """Runs a suite on a kernel and prints its table; returns whether all cases passed."""
        if suite.has_disk and (why := disk.lacking()) is not None:
            raise Unreachable(why)
        names = self._archive.names(kernels.PATTERN)
        kernel = kernels.choose(version, suite.is_cloud, names, self._architecture)
        if kernel is None:
            known = ", ".join(self.versions())
            raise SystemExit(f"run.py: Debian's archive has no kernel {version}; it has {known}")
        tree = CACHE / kernel.release
        self._archive.unpack(kernel.packages, tree)
        qemu = self._emulator()
        files = self._files(suite, kernel.release, tree)
        outcome = Outcome("", False)
        for attempt in (1, 2):
            print(f"== {suite.name} on Linux {kernel.release}, programs of {self._programs}", flush=True)
            begin = time.monotonic()
            log = CACHE / f"{suite.name}-{kernel.release}.log"
            outcome = boot(qemu, files, suite.machines(), suite.deadline, log)
            oops = outcome.oops()
            consoles = ", ".join(str(machine.log_of(one, log)) for one in suite.machines())
            print(f"== {time.monotonic() - begin:.0f} s; console: {consoles}")
            if oops is None or attempt == 2:
                break
            print(f"== the guest's kernel failed ({oops}); once more")
        for file in (files.initramfs, files.disk):
            if file is not None:
                file.unlink()
        if self._is_recorded and outcome.is_complete:
            matrix.add(suite.name, kernel.release, outcome.results())
            matrix.write()
        return report(outcome)

    def _emulator(self) -> Emulator:
        """Returns QEMU, of bookworm-backports where that can be had."""
        root = CACHE / self._architecture.qemu_package
        self._own.unpack_with_libraries("bookworm-backports", (self._architecture.qemu_package,), root)
        program = root / "usr" / "bin" / self._architecture.qemu
        # It is in the machine already where it is installed.
        found = installed(self._architecture)
        if program.exists():
            found = Emulator(self._architecture, program, root)
        if found is None:
            raise Unreachable(f"no {self._architecture.qemu} in {root}; remove it to download it again")
        return found

    def _files(self, suite: Suite, release: str, tree: Path) -> Boot:
        """Makes the files that a suite's machines start from."""
        [kernel] = tree.glob("**/vmlinuz*")
        initramfs = CACHE / f"{suite.name}-{release}.gz"
        if not suite.has_disk:
            self._image(suite, tree).write(initramfs)
            return Boot(kernel, initramfs)
        _, busybox = self._tools()
        image, files = Image(), Image()
        for folder in ("/proc", "/sys", "/dev"):
            image.folder(folder)
        image.add("/init", (GUEST / "disk-init").read_bytes(), is_program=True)
        image.add("/bin/busybox", busybox.read_bytes(), is_program=True)
        image.modules(tree, suite.modules)
        image.write(initramfs)
        suite.add_to(files)
        target = CACHE / f"{suite.name}-{release}.ext4"
        disk.make(self._programs, files, target)
        return Boot(kernel, initramfs, target)

    def _image(self, suite: Suite, tree: Path) -> Image:
        root, busybox = self._tools()
        image = Image(self._architecture, root)
        for folder in ("/proc", "/sys", "/dev", "/run", "/tmp", "/etc", "/usr", "/usr/bin"):
            image.folder(folder)
        image.add("/init", (GUEST / "init").read_bytes(), is_program=True)
        image.add("/bin/busybox", busybox.read_bytes(), is_program=True)
        for name in TOOLS:
            if (path := find(name, root)) is not None:
                image.program(path, f"/usr/bin/{name}")
        for name in SUMAC if not suite.tests else ():
            image.program(self._programs / name, f"/usr/bin/{name}")
        tests = self._tests(suite) if suite.tests else {}
        for name, path in tests.items():
            image.program(path, f"/tests/{name}")
        image.add("/tests/list", "".join(f"{name}\n" for name in tests).encode())
        image.modules(tree, suite.modules)
        suite.add_to(image)
        return image

    def _tools(self) -> tuple[Path, Path]:
        """Returns the folder whose tools and libraries the machine gets, and a static busybox."""
        root = CACHE / f"root-{self._architecture.name}"
        packages = ("busybox-static",) if self._architecture.is_native else TOOL_PACKAGES
        self._archive.unpack_with_libraries("bookworm", packages, root)
        # apt leaves out what is installed already.
        busybox = find("busybox", root) or find("busybox")
        if busybox is None:
            raise Unreachable(f"no busybox in {root}; remove it to download it again")
        return Path("/") if self._architecture.is_native else root, busybox

    def _tests(self, suite: Suite) -> dict[str, Path]:
        """Builds a suite's tests, and returns the binaries by the names of packages and tests."""
        command = ["cargo", "test", "--no-run", "--locked", *suite.tests]
        command.append("--message-format=json-render-diagnostics")
        native = self._architecture.is_native
        # Without debug information: an initramfs is in the machine's memory.
        variables = dict(os.environ) if native else cross.environment(self._architecture)
        variables["CARGO_PROFILE_DEV_DEBUG"] = "0"
        built = subprocess.run(
            command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=False
        )
        if built.returncode != 0:
            raise SystemExit(f"run.py: `{' '.join(command)}` failed, see above")
        found = {}
        for message in map(json.loads, built.stdout.splitlines()):
            if message["reason"] != "compiler-artifact" or not message["executable"]:
                continue
            if message["profile"]["test"]:
                found[test_name(message)] = Path(message["executable"])
        return found


def test_name(artifact: dict) -> str:
    """Returns the name of a test binary in cargo's message: of a library's units that of its crate, since two
    packages have folders of one name."""
    target = artifact["target"]
    if target["kind"] == ["test"]:
        return f"{Path(artifact['manifest_path']).parent.name}-{target['name']}"
    return target["name"].removeprefix("sumac_")


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
    parser.add_argument("--architecture", choices=list(ARCHITECTURES), default=AMD64.name,
                        help=f"the processor [{AMD64.name}]")
    parser.add_argument("--record", action="store_true",
                        help=f"add what complete machines show to {matrix.RECORD.relative_to(ROOT)}")
    parser.add_argument("--list", action="store_true", help="name suites and versions, and run nothing")
    options = parser.parse_args(arguments)
    architecture = ARCHITECTURES[options.architecture]
    built = ROOT / "target" / ("" if architecture.is_native else architecture.rust) / "release"
    programs = Path(os.environ.get("SUMAC_BIN_DIR") or built).resolve()
    # The NICs are those of a PC; the packages are built for this machine.
    fits = [suite for suite in SUITES if architecture.is_native or not (suite.drivers or suite.has_disk)]
    chosen = [suite for suite in SUITES if suite.name == options.suite] if options.suite else fits
    if chosen[0] not in fits:
        print(f"run.py: the suite {options.suite} is not for {architecture.name}", file=sys.stderr)
        return 2
    missing = [name for name in SUMAC if not (programs / name).exists()]
    if missing and not options.list and not all(suite.tests for suite in chosen):
        remedy = "make equipment" if architecture.is_native else "make arm64"
        print(f"run.py: {', '.join(missing)} not in {programs}: {remedy}", file=sys.stderr)
        return 3
    try:
        guests = Guests(architecture, programs, options.record)
        if options.list:
            print("suites:", ", ".join(suite.name for suite in SUITES))
            print("kernels:", ", ".join(guests.versions()))
            return 0
    except Unreachable as error:
        print(f"SKIP vm: {error}")
        return 0
    have_passed = True
    for suite in chosen:
        try:
            have_passed &= guests.run(suite, options.kernel)
        except Unreachable as error:
            print(f"SKIP vm: {suite.name}: {error}")
        except disk.CommandError as error:
            print(f"{suite.name}: FAILED: {error}")
            have_passed = False
    return 0 if have_passed else 1


if __name__ == "__main__":
    sys.exit(main())
