"""The entry point by which an import of torch 2.5 or later loads the backend. It imports no torch at its top:
``import sumac.torch`` runs it while that module is half imported."""

from __future__ import annotations

import importlib
import sys


def register() -> None:
    """Registers the backend, unless the import that is in progress does."""
    if "sumac.torch" not in sys.modules:
        importlib.import_module("sumac.torch")
