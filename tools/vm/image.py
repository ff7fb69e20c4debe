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

from architecture import AMD64, Architecture

LLVM_STRIP = "/usr/lib/llvm-22/bin/llvm-strip"
"""For programs of all processors; the tool chain has it."""
_DIRECTORY, _FILE, _PROGRAM = 0o040755, 0o100644, 0o100755


class Image:
    """The files of an initramfs, by their path in it."""

    def __init__(self, architecture: Architecture = AMD64, root: Path = Path("/")) -> None:
        """`root` has the libraries of the programs that are added."""
        self._files: dict[str, tuple[int, bytes]] = {}
        self._gnu = architecture.gnu
        self._root = root

    def add(self, path: str, content: bytes, is_program: bool = False) -> None:
        for parent in reversed(Path(path).parents):
            if parent != Path("/"):
                self._files.setdefault(str(parent), (_DIRECTORY, b""))
        self._files[path] = (_PROGRAM if is_program else _FILE, content)

    def paths(self) -> Iterable[str]:
        return self._files.keys()

    def content(self, path: str) -> bytes:
        return self._files[path][1]

    def folder(self, path: str) -> None:
        self._files[path] = (_DIRECTORY, b"")

    def program(self, source: Path, path: str) -> None:
        """Adds a program without its symbols, and the libraries that it needs at the paths that they have."""
        self.add(path, self._stripped(source), is_program=True)
        for name in needed_libraries(source):
            library = self._library(name)
            if library is not None and library not in self._files:
                self.program(self._root / library[1:], library)

    def _library(self, name: str) -> Optional[str]:
        """Returns the path of a library in the root; the program's interpreter is named by its path."""
        folders = ["/lib", "/lib64", "/usr/lib"]
        folders += [f"{folder}/{self._gnu}" for folder in ("/lib", "/usr/lib", "/usr/local/lib")]
        paths = [name] if "/" in name else [f"{folder}/{name}" for folder in folders]
        return next((path for path in paths if (self._root / path[1:]).exists()), None)

    def _stripped(self, program: Path) -> bytes:
        with tempfile.NamedTemporaryFile() as target:
            # A program of another format, such as a script, stays as it is.
            command = [LLVM_STRIP, "-o", target.name, program]
            is_done = subprocess.run(command, check=False, capture_output=True).returncode == 0
            return Path(target.name if is_done else program).read_bytes()

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

    def lay(self, root: Path) -> None:
        """Writes the files into a folder, beside what it has."""
        for path, (mode, content) in self._files.items():
            file = root / path.lstrip("/")
            if mode == _DIRECTORY:
                file.mkdir(exist_ok=True)
            else:
                file.write_bytes(content)
                file.chmod(mode & 0o777)

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


def needed_libraries(program: Path) -> list[str]:
    """Returns the interpreter and the names of the libraries that a program or a library is linked with."""
    command = ["readelf", "--wide", "--program-headers", "--dynamic", program]
    read = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return re.findall(r"(?:interpreter: |\(NEEDED\) +Shared library: \[)([^\]]+)\]", read)


def find(program: str, root: Path = Path("/")) -> Optional[Path]:
    # The folders of packages for `root` link to one another by absolute paths; in bin are the programs.
    folders = (root / folder for folder in ("usr/bin", "bin", "usr/sbin", "sbin"))
    found = shutil.which(program, path=":".join(map(str, folders)))
    return Path(found).resolve() if found else None


def _plain(module: str) -> str:
    return module.replace("-", "_")
