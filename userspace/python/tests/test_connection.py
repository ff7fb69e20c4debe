"""The connection to the daemon: the system calls of a message."""

from __future__ import annotations

from unittest import mock

import sumac

from .lab import WithLab


class SystemCalls(WithLab):
    def test_only_a_wait_with_a_deadline_polls(self) -> None:
        with mock.patch("sumac.connection.select.poll", side_effect=AssertionError("polled")):
            client = sumac.Client(self.lab.socket(0))
            self.addCleanup(client.close)
            with client.open("polls", 0, 1) as job:
                array = job.buffer(8)
                client.read_arrived()
                job.allreduce(array)
