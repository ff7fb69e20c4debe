"""A small program that tests compile once for each chip."""

from __future__ import annotations

import functools
import pathlib

from toolchain import BUILT, Chip, compile_for_chip

PROGRAM = pathlib.Path(__file__).parent / "parser.p4"


@functools.cache
def small_program(chip: Chip) -> pathlib.Path:
    """Returns the folder of the compiled program."""
    folder = BUILT / "small" / chip.target
    compile_for_chip(PROGRAM, chip, folder)
    return folder
