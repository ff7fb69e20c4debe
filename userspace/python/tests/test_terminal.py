"""``sumac top`` in a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
import unittest

from .lab import TEST_TIMEOUT, program


@unittest.skipUnless(program("sumac"), "sumac is not built: make build")
class Terminal(unittest.TestCase):
    def start(self) -> tuple[int, int]:
        """Returns the process and the terminal of a view that has drawn something. No daemon is there, and it
        says so."""
        path = str(program("sumac"))
        child, terminal = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm"
            os.execv(path, [path, "top", "--socket", "/nonexistent/sumac.sock"])
        self.assertTrue(select.select([terminal], [], [], TEST_TIMEOUT)[0], "it draws nothing")
        os.read(terminal, 1024)
        return child, terminal

    def ended(self, child: int) -> int:
        """Returns the status of the process."""
        deadline = time.monotonic() + TEST_TIMEOUT
        while time.monotonic() < deadline:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return self.fail("it goes on")

    def test_it_ends_when_its_terminal_is_closed(self) -> None:
        child, terminal = self.start()
        os.close(terminal)
        self.ended(child)

    def test_it_ends_by_a_signal_and_restores_the_terminal(self) -> None:
        child, terminal = self.start()
        os.kill(child, signal.SIGTERM)
        output = b""
        try:
            while select.select([terminal], [], [], TEST_TIMEOUT)[0]:
                output += os.read(terminal, 65536)
        except OSError:  # EIO: the other end is closed
            pass
        self.assertEqual(os.waitstatus_to_exitcode(self.ended(child)), 0)
        self.assertIn(b"\x1b[?1049l", output, "the alternate screen is left")
        os.close(terminal)
