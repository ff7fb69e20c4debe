"""An initramfs of programs with their libraries, kernel modules and files."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

_DIRECTORY, _FILE, _PROGRAM = 0o040755, 0o100644, 0o100755


class Image:
    """The files of an initramfs, by their path in it."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, bytes]] = {}

    def add(self, path: str, content: bytes, is_program: bool = False) -> None:
        for parent in reversed(Path(path).parents):
            if parent != Path("/"):
                self._files.setdefault(str(parent), (_DIRECTORY, b""))
        self._files[path] = (_PROGRAM if is_program else _FILE, content)

    def content(self, path: str) -> bytes:
        return self._files[path][1]

    def folder(self, path: str) -> None:
        self._files[path] = (_DIRECTORY, b"")

    def program(self, source: Path, path: str) -> None:
        """Adds a program without its symbols, and its libraries at the paths that they have here."""
        self.add(path, _stripped(source), is_program=True)
        listed = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/[^ ]+) \(0x", listed):
            if library not in self._files:
                self.add(library, _stripped(Path(library).resolve()), is_program=True)

    def modules(self, tree: Path, names: Iterable[str]) -> None:
        """Adds modules and those that they need, and `/modules/order`, the order to load them in. Names that
        the kernel has no module of are built in, or not there at all."""
        order: dict[str, None] = {}
        known = {_plain(file.name.split(".")[0]): file for file in tree.glob("**/*.ko*")}

        def load(name: str) -> None:
            file = known.get(_plain(name))
            if file is None or _plain(name) in order:
                return
            content = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
            for needed in needed_modules(content):
                load(needed)
            order[_plain(name)] = None
            self.add(f"/modules/{_plain(name)}.ko", content)

        for name in names:
            load(name)
        self.add("/modules/order", "".join(f"{name}\n" for name in order).encode())

    def write(self, target: Path) -> None:
        with gzip.open(target, "wb", compresslevel=1) as file:
            for entry in cpio((path, *content) for path, content in self._files.items()):
                file.write(entry)


def cpio(files: Iterable[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """Yields a cpio archive in the format `newc`, which kernels read."""
    number = 0
    for path, mode, content in [*files, ("TRAILER!!!", 0, b"")]:
        number += 1
        name = path.lstrip("/").encode() + b"\0"
        # Number, mode, owner, group, links, time, size, device (4 fields), length of the name, checksum.
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        for part in (header + name, content):
            yield part + b"\0" * (-len(part) % 4)


def needed_modules(content: bytes) -> list[str]:
    """Returns the modules that a module names in its section `.modinfo`."""
    found = re.search(rb"\0depends=([^\0]*)\0", content)
    return [name for name in found[1].decode().split(",") if name] if found else []


def find(program: str) -> Optional[Path]:
    found = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    return Path(found).resolve() if found else None


def _plain(module: str) -> str:
    return module.replace("-", "_")


def _stripped(program: Path) -> bytes:
    with tempfile.NamedTemporaryFile() as target:
        # A program of another format, such as a script, stays as it is.
        command = ["strip", "-o", target.name, program]
        is_done = subprocess.run(command, check=False, capture_output=True).returncode == 0
        return Path(target.name if is_done else program).read_bytes()
