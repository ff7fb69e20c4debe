"""Threads that the process's end waits for.

A thread that is in torch's code when the interpreter ends takes the process down: its wait for the
interpreter's lock ends by unwinding the stack, which C++ does not allow there ("terminate called without an
active exception").
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_threads: set[threading.Thread] = set()


def start(name: str, run: Callable[[], None]) -> threading.Thread:
    """Runs a function in a thread of its own."""
    for ended in [thread for thread in list(_threads) if not thread.is_alive()]:
        _threads.discard(ended)
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    _threads.add(thread)
    return thread


def join(deadline: float) -> None:
    """Waits for the threads' ends, at most until this moment."""
    for thread in list(_threads):
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
