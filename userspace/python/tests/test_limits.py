"""The limits of an aggregator, in the Python client's errors."""

from __future__ import annotations

import unittest

import sumac

from .lab import TEST_TIMEOUT, Lab, WithLab


class FewJobs(WithLab):
    """An aggregator that lets a host have ten jobs."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = Lab(share=1)
        cls.addClassCleanup(cls.lab.stop)

    def test_the_limit_of_jobs_is_named(self) -> None:
        with sumac.Client(self.lab.socket(0)) as client:
            def open_job(number: int) -> None:
                client.open(f"number {number}", 0, 1, mode="direct", timeout=TEST_TIMEOUT)

            for number in range(10):
                open_job(number)
            with self.assertRaises(sumac.SumacError) as raised:
                open_job(10)
        self.assertEqual(raised.exception.code, "refused")
        for part in ("host 127.0.0.1 holds `number 0`", "a share of 10 of 1023 job numbers", "serve --share"):
            self.assertIn(part, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
