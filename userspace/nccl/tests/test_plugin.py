"""The plugin as NCCL's proxy thread calls it, by a program in C, over real daemons on the loopback interface.

``cargo build`` builds what it needs: the daemons' programs, and the plugin.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = ROOT / "userspace/nccl"
VERSIONS = (8, 10, 12)
SMALL = int(os.environ.get("SUMAC_NCCL_SMALL", "5000"))
"""Small sums, and small messages, of the test of many: half a million take some minutes."""
C11 = ["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]

# The Python package, and the lab of its tests.
sys.path.insert(0, str(ROOT / "userspace/python"))
_spec = importlib.util.spec_from_file_location("sumac_lab", ROOT / "userspace/python/tests/lab.py")
assert _spec is not None and _spec.loader is not None
lab = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lab)


def built() -> pathlib.Path | None:
    """Returns the folder of the newest plugin, as cargo calls it."""
    folder = os.environ.get("SUMAC_BIN_DIR")
    places = [pathlib.Path(folder)] if folder else [ROOT / "target" / kind for kind in ("release", "debug")]
    places += [place / "deps" for place in places]
    found = [place for place in places if (place / "libnccl_net_sumac.so").exists()]
    return max(found, key=lambda place: (place / "libnccl_net_sumac.so").stat().st_mtime, default=None)


def ready() -> bool:
    """Returns whether all is built; where the programs' folder is named, as `make test` does, it must be."""
    return "SUMAC_BIN_DIR" in os.environ or bool(
        built() and lab.program("sumac") and lab.program("sumac-agg")
    )


class WithPlugin(unittest.TestCase):
    """The plugin as ``install.sh`` lays it out, the program, and a lab of two daemons."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="sumac-nccl-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        cls.runs = 0
        environment = {**os.environ, "LIBDIR": str(cls.path)}
        subprocess.run([str(HERE / "install.sh"), str(built())], check=True, env=environment)
        cls.library = cls.path / "libnccl-net-sumac.so"
        cls.program = cls.path / "proxy"
        sources = [str(HERE / "tests" / name) for name in ("proxy.c", "collective.c", "plugin.c")]
        subprocess.run([*C11, *sources, "-o", str(cls.program), "-ldl", "-lpthread"], check=True)
        cls.lab = lab.Lab()
        cls.addClassCleanup(cls.lab.stop)

    def begin(
        self, version: int, scenario: str, *arguments: str, daemons: tuple[int, ...] = (0, 1),
        **variables: str,
    ) -> None:
        """Starts the program as one rank for each of the daemons."""
        type(self).runs += 1
        self.exchange = self.path / f"run{self.runs}"
        self.exchange.mkdir()
        self.outputs = []
        self.processes = []
        for rank, daemon in enumerate(daemons):
            self.outputs.append(self.exchange / f"output{rank}")
            with open(self.outputs[-1], "w", encoding="utf-8") as output:
                process = subprocess.Popen(
                    [str(self.program), str(self.library), scenario, *arguments],
                    env={
                        **os.environ, "RANK": str(rank), "WORLD": str(len(daemons)), "VERSION": str(version),
                        "EXCHANGE": str(self.exchange), "SUMAC_SOCKET": self.lab.socket(daemon), **variables,
                    },
                    stdout=output, stderr=subprocess.STDOUT,
                )
            self.processes.append(process)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)

    def end(self, timeout: float = 2 * lab.TEST_TIMEOUT) -> list[str]:
        """Waits for all ranks, and returns what each printed."""
        for process in self.processes:
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        texts = [output.read_text(encoding="utf-8") for output in self.outputs]
        codes = [process.returncode for process in self.processes]
        self.assertEqual(codes, [0] * len(codes), "\n".join(text[-4000:] for text in texts))
        return texts

    def run_all(self, scenario: str, *arguments: str, daemons: tuple[int, ...] = (0, 1)) -> list[str]:
        """Runs a scenario with all versions of the interface, and returns what the last one printed."""
        texts = []
        for version in VERSIONS:
            with self.subTest(version=version):
                self.begin(version, scenario, *arguments, daemons=daemons)
                texts = self.end()
        return texts


@unittest.skipUnless(ready(), "the plugin, sumac and sumac-agg are not built: cargo build")
class Plugin(WithPlugin):
    def test_properties_reductions_and_wrong_calls(self) -> None:
        text = self.run_all("basics")[0]
        self.assertRegex(text, r"level 3 NET/Sumac : sumac \S+ at \S+host0.sock, backend udp, interface \S+")
        self.assertRegex(text, r"level 3 NET/Sumac : collective rank 0 of 2: job 1 of 2 ranks, mode Static")

    def test_a_dozen_requests_on_each_of_six_channels_end_in_any_order(self) -> None:
        text = self.run_all("sums")[0]
        closed = "collective rank 0 of 2: closed: 24 requests, 0 deferred, 24 copies in of "
        self.assertEqual(text.count(closed), 6)

    def test_ranks_at_one_daemon(self) -> None:
        for scenario in ("sums", "windows", "messages", "aborts"):
            with self.subTest(scenario):
                self.begin(12, scenario, daemons=(0, 0))
                self.end()
        self.begin(12, "sums", daemons=(0,))
        self.end()

    def test_several_ranks_at_each_daemon(self) -> None:
        for scenario in ("sums", "windows"):
            with self.subTest(scenario):
                self.begin(12, scenario, daemons=(0, 0, 1, 1))
                self.assertIn("collective rank 3 of 4", self.end()[3])

    def test_ranks_that_are_not_the_same_number_at_each_daemon_do_not_join(self) -> None:
        self.begin(12, "uneven", daemons=(0, 0, 1))
        for text in self.end():
            self.assertIn("joining the ranks: the ranks are not the same number at each daemon", text)

    def test_values_that_are_not_finite_or_out_of_range(self) -> None:
        text = self.run_all("values")[0]
        self.assertRegex(text, r"level 2 NET/Sumac : collective rank 0 of 2: .*2147483647.*\(saturated\)")
        self.assertIn("closed: 18 requests, 4 deferred", text)

    def test_large_tensors_and_messages(self) -> None:
        self.run_all("large")

    def test_windows_of_gathers_and_reduce_scatters(self) -> None:
        self.run_all("windows")

    def test_messages_in_both_directions(self) -> None:
        text = self.run_all("messages")[1]
        self.assertIn("receive: a message of 2000 bytes has arrived for a receive of 1999", text)

    def test_twenty_connections_at_once(self) -> None:
        for daemons in ((0, 1), (0, 0)):
            with self.subTest(daemons=daemons):
                self.begin(12, "many", daemons=daemons)
                self.end()

    def test_messages_over_tcp(self) -> None:
        for scenario in ("messages", "large", "aborts", "small"):
            with self.subTest(scenario):
                self.begin(12, scenario, SUMAC_NCCL_P2P="tcp")
                self.assertIn("over TCP: closed: ", self.end()[1])

    def test_the_environment_chooses_the_mode_of_collective_jobs(self) -> None:
        for mode, shown in (("dynamic", "Dynamic"), ("direct", "Direct"), ("static", "Static")):
            with self.subTest(mode):
                self.begin(12, "windows", SUMAC_MODE=mode)
                self.assertIn(f"job 1 of 2 ranks, mode {shown}", self.end()[0])

    def test_many_small_calls(self) -> None:
        self.begin(12, "small", str(SMALL))
        texts = self.end(timeout=2 * lab.TEST_TIMEOUT + SMALL / 100)
        self.assertIn(f"{SMALL} small sums in ", texts[0])
        if "SUMAC_NCCL_SMALL" in os.environ:
            sys.stderr.write("".join(re.findall(r"rank .* small .*\n", texts[0])))

    def test_closing_with_requests_on_their_way(self) -> None:
        self.run_all("aborts")

    def test_packets_are_lost(self) -> None:
        self.lab.drop("3%")
        self.addCleanup(self.lab.drop, "0")
        for scenario in ("sums", "windows", "small"):
            with self.subTest(scenario):
                self.begin(12, scenario)
                self.end()

    def test_without_a_daemon_nccl_goes_on_without_the_plugin(self) -> None:
        for version in VERSIONS:
            environment = {
                **os.environ, "RANK": "0", "WORLD": "1", "VERSION": str(version), "EXCHANGE": str(self.path),
                "SUMAC_SOCKET": "/no/such.sock",
            }
            ran = subprocess.run(
                [str(self.program), str(self.library), "absent"], env=environment, stderr=subprocess.PIPE,
                text=True, timeout=lab.TEST_TIMEOUT, check=True,
            )
            self.assertRegex(ran.stderr, r"level 2 NET/Sumac : the plugin is not used: .*/no/such\.sock")

    def test_nothing_but_the_plugins_structures_is_exported(self) -> None:
        symbols = subprocess.check_output(["nm", "-D", "--defined-only", str(self.library)], text=True)
        expected = {f"nccl{net}Plugin_v{version}" for net in ("Net", "CollNet") for version in VERSIONS}
        self.assertEqual({line.split()[2] for line in symbols.splitlines()}, expected)
        dynamic = subprocess.check_output(["readelf", "-d", str(self.library)], text=True)
        self.assertIn("soname: [libnccl-net-sumac.so]", dynamic)
        self.assertIn("NODELETE", dynamic)


@unittest.skipUnless(ready(), "the plugin, sumac and sumac-agg are not built: cargo build")
class Death(WithPlugin):
    """In a lab of its own, whose daemons and aggregator die."""

    def test_a_daemon_that_dies_ends_requests_with_errors_and_not_the_process(self) -> None:
        for version in VERSIONS:
            with self.subTest(version=version):
                self.begin(version, "death")
                # Rank 1 may have its side of the connection before rank 0.
                self.await_file("ready.0")
                self.await_file("ready.1")
                self.lab.daemons[1].kill()
                self.lab.daemons[1].wait()
                (self.exchange / "killed.0").touch()
                self.lab.daemons[1] = self.lab.start_daemon(1, self.lab.token)
                (self.exchange / "restarted.0").touch()
                for rank, text in enumerate(self.end()):
                    found = re.search(rf"rank {rank}: an error \d after ([\d.]+) s", text)
                    self.assertTrue(found, text)
                    assert found is not None
                    self.assertLess(float(found[1]), 30)

    def test_an_aggregator_that_dies_ends_requests_of_static_jobs_with_errors(self) -> None:
        for restarts_at_once, reason in ((False, "stopped answering"), (True, "lost its state")):
            with self.subTest(reason):
                self.begin(12, "job-fails")
                for text in self.kill_aggregator(restarts_at_once):
                    self.assertRegex(text, rf"level 2 NET/Sumac : collective rank . of 2: .*{reason}")

    def test_jobs_of_other_modes_go_on_when_the_aggregator_dies(self) -> None:
        for mode in ("dynamic", "direct"):
            with self.subTest(mode):
                self.begin(12, "job-goes-on", SUMAC_MODE=mode)
                self.kill_aggregator()

    def kill_aggregator(self, restarts_at_once: bool = False) -> list[str]:
        """Kills it with requests in flight. It starts again at once, or when the communicators are closed."""
        self.await_file("in-flight.0")
        self.await_file("in-flight.1")
        self.lab.aggregator.kill()
        self.lab.aggregator.wait()
        if restarts_at_once:
            self.lab.aggregator = self.lab.start_aggregator()
        (self.exchange / "killed.0").touch()
        self.await_file("closed.0")
        self.await_file("closed.1")
        if not restarts_at_once:
            self.lab.aggregator = self.lab.start_aggregator()
        (self.exchange / "restarted.0").touch()
        texts = self.end()
        for rank, text in enumerate(texts):
            found = re.search(rf"rank {rank}: ended after ([\d.]+) s, closed after ([\d.]+) s", text)
            self.assertTrue(found, text)
            assert found is not None
            # A static job ends after 4 s; a busy machine takes longer.
            self.assertLess(float(found[1]), 20)
            self.assertLess(float(found[2]), 20)
        return texts

    def await_file(self, name: str) -> None:
        deadline = lab.time.monotonic() + lab.TEST_TIMEOUT
        while not (self.exchange / name).exists():
            self.assertLess(lab.time.monotonic(), deadline)
            lab.time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()
