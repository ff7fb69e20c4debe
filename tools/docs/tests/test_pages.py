"""The commands of the pages, on the built programs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import tempfile
import unittest

from blocks import FOLDER, blocks
from machines import Site
from pages import run_page
from programs import ROOT, missing
from shell import Shell
from user import root_shell, user_shell


def has_root() -> bool:
    """Returns whether labs can be made; with REQUIRE_PRIVILEGED=1 a test that needs them fails otherwise."""
    return os.geteuid() == 0 or os.environ.get("REQUIRE_PRIVILEGED") == "1"


@unittest.skipIf(missing(), missing())
class Pages(unittest.TestCase):
    def setUp(self) -> None:
        self._stack = contextlib.ExitStack()
        self.addCleanup(self._stack.close)

    def _folder(self) -> pathlib.Path:
        return pathlib.Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sumac-page-", dir="/tmp"))
        )

    @unittest.skipUnless(has_root(), "labs need root")
    def test_tutorial(self) -> None:
        shells = {"user": user_shell(self._folder()), "root": root_shell(self._folder())}
        for shell in shells.values():
            self._stack.callback(shell.stop)
        self.assertGreater(run_page(FOLDER / "tutorial.md", shells), 5)

    @unittest.skipIf(
        importlib.util.find_spec("torch") is None, "torch is not installed: apt-get install python3-torch"
    )
    def test_pytorch(self) -> None:
        shell = user_shell(self._folder())
        self._stack.callback(shell.stop)
        self.assertEqual(run_page(FOLDER / "pytorch.md", {"user": shell}), 4)

    @unittest.skipUnless(has_root(), "machines of namespaces need root")
    def test_deployment(self) -> None:
        self.assertGreater(self._run_on_site("deployment/index.md", "aggregator", ("eth1", "eth2")), 10)

    @unittest.skipUnless(has_root(), "machines of namespaces need root")
    def test_smartnic(self) -> None:
        self.assertEqual(self._run_on_site("deployment/smartnic.md", "card", ("p0", "pf0hpf")), 1)

    @unittest.skipUnless(has_root(), "machines of namespaces need root")
    def test_network_and_aggregator(self) -> None:
        ports = ("eth1", "eth2", "eth3", "eth4")
        for page, count in (("deployment/network.md", 3), ("deployment/aggregator.md", 5), ("labs.md", 2)):
            with self.subTest(page):
                self.assertEqual(self._run_on_site(page, "aggregator", ports), count)

    def test_monitoring(self) -> None:
        shell = Shell([], ROOT, {"PATH": "/usr/bin:/bin", "HOME": str(self._folder())})
        self._stack.callback(shell.stop)
        self.assertEqual(run_page(FOLDER / "monitoring.md", {"repository": shell}), 1)

    def test_no_other_page_has_blocks_to_run(self) -> None:
        run = {
            path for path in FOLDER.rglob("*.md") for block in blocks(path) if block.verb in ("run", "file")
        }
        # frameworks is run by make torch-stacks.
        tested = ("tutorial", "pytorch", "frameworks", "monitoring", "labs",
                  *(f"deployment/{name}" for name in ("index", "smartnic", "network", "aggregator")))
        self.assertEqual(run, {FOLDER / f"{name}.md" for name in tested})

    def _run_on_site(self, page: str, aggregator: str, ports: tuple[str, ...]) -> int:
        site = Site(self._folder(), aggregator, ports)
        self._stack.callback(site.stop)
        return run_page(FOLDER / page, site.shells)


if __name__ == "__main__":
    unittest.main()
