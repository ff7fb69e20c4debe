"""Choice among the kernels of Debian's archive, by the names of their packages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

from architecture import AMD64, Architecture

PATTERN = r"^linux-(image|binary|modules)-[0-9].*-(amd64|arm64)$"
"""The packages that kernels are in. Up to 6.18 the image has all, then the kernel is in a package of its own,
and from 7.2 on its modules too."""

_NAME = re.compile(r"linux-(?:image|binary|modules)-([0-9].*?)-((?:cloud-)?(?:amd64|arm64))")


class Kernel(NamedTuple):
    """A kernel, and the packages that it is in."""

    release: str
    packages: tuple[str, ...]


def choose(
    version: str, is_cloud: bool, names: Iterable[str], architecture: Architecture = AMD64
) -> Optional[Kernel]:
    """Returns the latest kernel of a version such as `7.2` or `7.2.9`; the cloud kernel is small, and has no
    drivers of hardware."""
    flavour = f"cloud-{architecture.name}" if is_cloud else architecture.name
    packages: dict[str, list[str]] = {}
    for name in names:
        found = _NAME.fullmatch(name)
        # `rt` and other flavours end in the architecture's name, too.
        if found and found[2] == flavour and not found[1].endswith(("-rt", "-cloud")):
            packages.setdefault(found[1], []).append(name)
    matching = [abi for abi in packages if _is_of(abi, version)]
    if not matching:
        return None
    abi = max(matching, key=_numbers)
    return Kernel(f"{abi}-{flavour}", tuple(sorted(packages[abi])))


def versions(names: Iterable[str]) -> list[str]:
    """Returns the versions that kernels are there of, such as `6.1`, in ascending order."""
    found = {".".join(name[1].split(".")[:2]) for name in map(_NAME.fullmatch, names) if name}
    return sorted(found, key=_numbers)


def _is_of(abi: str, version: str) -> bool:
    return abi.startswith(version) and not abi[len(version) :][:1].isdigit()


def _numbers(abi: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", abi)]
