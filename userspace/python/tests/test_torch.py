"""The backend ``sumac`` of torch.distributed over real daemons, beside Gloo."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import os
import re
import selectors
import subprocess
import sys
import time
import unittest
from typing import Any, ClassVar

from .lab import ROOT, TEST_TIMEOUT, Lab, program

PYTHON = ROOT / "userspace" / "python"


def why_not() -> str | None:
    """Returns the reason that these tests cannot run."""
    if not (program("sumac") and program("sumac-agg")):
        return "sumac and sumac-agg are not built: make build"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: apt-get install python3-torch"
    return None


def lacks_libuv() -> bool:
    """Returns whether torchrun fails with every backend, as that of Debian 13 does."""
    import torch.distributed as dist

    try:
        dist.TCPStore("127.0.0.1", 0, 1, True, use_libuv=True)
    except TypeError:
        return False  # A version before libuv.
    except RuntimeError as error:
        return "libuv" in str(error)
    return False


def environment(lab: Lab, rank: int, **more: str) -> dict[str, str]:
    """Returns the environment of a rank."""
    return {
        **os.environ, "PYTHONPATH": str(PYTHON), "RANK": str(rank), "WORLD_SIZE": str(lab.world),
        "OMP_NUM_THREADS": "1", "RANKS_PER_DAEMON": str(lab.ranks_per_daemon),
        "SUMAC_SOCKET": lab.socket(rank // lab.ranks_per_daemon), "GLOO_SOCKET_IFNAME": "lo", **more,
    }


class Rank:
    """A process that runs cases."""

    def __init__(self, lab: Lab, rank: int, cases: str, **more: str) -> None:
        self.log = lab.path / f"rank{rank}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.torch_ranks", cases], cwd=PYTHON, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log,
                env=environment(lab, rank, INIT_FILE=str(lab.path / "init"), **more),
            )

    def start(self, case: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{case}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Reads the next line, which has a case and its error."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(TEST_TIMEOUT) else b""
        if not line:
            return {"case": "none", "error": f"no answer after {TEST_TIMEOUT} s; {self.log.read_text()}"}
        return json.loads(line)

    def stop(self) -> int:
        """Ends the process as a script ends."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            return self.process.wait(TEST_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()


class Ranks(unittest.TestCase):
    """Ranks that run one case of a module after the other: three, each with its daemon."""

    cases: str
    daemons = 3
    ranks_per_daemon = 1
    more: ClassVar[dict[str, str]] = {}
    """Further variables of the ranks' environment."""
    lab: Lab
    ranks: list[Rank]

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = Lab(cls.daemons)
        cls.addClassCleanup(cls.lab.stop)
        cls.addClassCleanup(cls.stop_ranks)
        cls.lab.world = cls.daemons * cls.ranks_per_daemon
        cls.lab.ranks_per_daemon = cls.ranks_per_daemon
        cls.ranks = []
        cls.start_ranks()

    @classmethod
    def start_ranks(cls) -> None:
        init = cls.lab.path / "init"
        init.unlink(missing_ok=True)
        cls.ranks = [Rank(cls.lab, rank, cls.cases, **cls.more) for rank in range(cls.lab.world)]
        for rank in cls.ranks:
            answer = rank.answer()
            assert answer["error"] is None, answer["error"]

    @classmethod
    def stop_ranks(cls) -> list[int]:
        return [rank.stop() for rank in cls.ranks]

    def run_case(self, case: str) -> None:
        for rank in self.ranks:
            rank.start(case)
        answers = [rank.answer() for rank in self.ranks]
        wrong = [
            f"rank {number}: {answer['error']}" for number, answer in enumerate(answers) if answer["error"]
        ]
        if wrong:
            # The ranks may be at different calls.
            for rank in self.ranks:
                rank.process.kill()
            self.stop_ranks()
            self.start_ranks()
        self.assertFalse(wrong, "\n".join(wrong))


def add_cases(to: type[Ranks], *cases: str) -> None:
    """Adds a test for each case."""
    for case in cases:
        setattr(to, f"test_{case}", lambda self, case=case: self.run_case(case))


@unittest.skipIf(why_not(), why_not() or "")
class Collectives(Ranks):
    """The calls of torch.distributed."""

    cases = "tests.torch_cases"


add_cases(
    Collectives,
    "reductions", "means", "integers_are_exact", "floats_are_close", "bits", "blocks", "transfers",
    "asynchronous", "groups",
    "shared_memory", "refusals", "hooks", "ddp", "sharded", "interleaved",
)


@unittest.skipIf(why_not(), why_not() or "")
class OneDaemon(Ranks):
    """The same calls of ranks that have one daemon, which sums their tensors in memory."""

    cases = "tests.torch_cases"
    daemons, ranks_per_daemon = 1, 3


@unittest.skipIf(why_not(), why_not() or "")
class TwoDaemons(Ranks):
    """The same calls of ranks that have two daemons, which sum their ranks' tensors as they send them."""

    cases = "tests.torch_cases"
    daemons, ranks_per_daemon = 2, 2


SHARED = (
    "reductions", "means", "integers_are_exact", "floats_are_close", "bits", "blocks", "transfers",
    "asynchronous", "groups", "ddp", "sharded", "interleaved",
)
add_cases(OneDaemon, *SHARED)
add_cases(TwoDaemons, *SHARED)


@unittest.skipIf(why_not(), why_not() or "")
class TwoLevels(Ranks):
    """Reductions inside two hosts by Gloo, and across them by Sumac."""

    cases = "tests.torch_hybrid_cases"
    more: ClassVar[dict[str, str]] = {"SUMAC_LOCAL": "gloo"}
    daemons, ranks_per_daemon = 2, 2

    def test_a_dead_rank_is_named_by_all_others(self) -> None:
        for rank in self.ranks:
            rank.start("dead")
        errors = [rank.answer()["error"] for rank in self.ranks[:3]]
        self.stop_ranks()
        self.start_ranks()
        self.assertEqual(errors, [None] * 3)


add_cases(TwoLevels, "two_levels", "other_calls", "errors_have_the_groups_ranks", "uneven_hosts", "ddp")


@unittest.skipIf(why_not(), why_not() or "")
class Groups(Ranks):
    """The jobs of groups."""

    cases = "tests.torch_group_cases"


add_cases(Groups, "pairs", "absent_peer", "many_groups", "destroyed", "direct_in_16_bits")


@unittest.skipIf(why_not(), why_not() or "")
class Reductions(Ranks):
    """Reductions that the network does not have."""

    cases = "tests.torch_reductions"


add_cases(
    Reductions,
    "integers_have_means", "large_tensors", "large_blocks", "large_sums", "many_at_once",
    "premultiplied_sums", "floats_of_all_magnitudes", "floats_of_all_calls", "infinity_is_carried_on_request",
)


@unittest.skipIf(why_not(), why_not() or "")
class Waits(Ranks):
    """Threads that wait for works."""

    cases = "tests.torch_waits"


add_cases(Waits, "threads_at_once", "others_end_while_one_waits", "interrupts")


class OfTwoRanks(unittest.TestCase):
    """Two ranks, each with its daemon."""

    share = 100
    lab: Lab

    @classmethod
    def setUpClass(cls) -> None:
        cls.lab = Lab(2, share=cls.share)
        cls.addClassCleanup(cls.lab.stop)

    def start(self, case: str, **more: str) -> list[subprocess.Popen[str]]:
        """Starts two ranks of a case of ``tests.torch_failures``."""
        init = str(self.lab.path / f"init of {case}")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.torch_failures", case], cwd=PYTHON, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(self.lab, rank, INIT_FILE=init, **more), text=True,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            self.addCleanup(rank.communicate)
            self.addCleanup(rank.kill)
        return ranks

    def check_codes(self, ranks: list[subprocess.Popen[str]], *codes: int) -> None:
        outputs = [rank.communicate(timeout=TEST_TIMEOUT)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], list(codes), "\n".join(outputs))


@unittest.skipIf(why_not(), why_not() or "")
class Scripts(OfTwoRanks):
    """Scripts of two ranks."""

    def test_a_rank_that_waits_says_for_whom(self) -> None:
        self.check_codes(self.start("late_rank"), 0, 0)

    def test_waits_that_end_early_name_ranks(self) -> None:
        self.check_codes(self.start("named_waits", SUMAC_GATHER_BYTES="1000"), 0, 0)

    def test_a_forked_child_is_told_to_make_its_own_group(self) -> None:
        self.check_codes(self.start("forked"), 0, 0)

    def test_groups_are_made_anew_and_destroyed_groups_have_no_jobs(self) -> None:
        self.check_codes(self.start("again"), 0, 0)

    def test_debugged_groups_work(self) -> None:
        interface = {"GLOO_SOCKET_IFNAME": "lo"}  # Torch's wrapper compares calls with Gloo.
        self.check_codes(self.start("debugged", TORCH_DISTRIBUTED_DEBUG="DETAIL", **interface), 0, 0)

    def test_ranks_make_groups_in_different_orders(self) -> None:
        self.check_codes(self.start("other_order"), 0, 0)

    def test_a_rank_whose_tensor_is_on_an_unknown_device_is_named(self) -> None:
        self.check_codes(self.start("unknown_device"), 0, 0)

    def test_a_dead_rank_is_named_by_the_failing_call(self) -> None:
        self.check_codes(self.start("dead_rank"), 0, 7)

    def test_ranks_of_one_daemon_need_no_aggregator(self) -> None:
        config = self.lab.path / "alone.toml"
        socket = self.lab.path / "alone.sock"
        config.write_text(f'socket = "{socket}"\nbackend = "udp"\naddress = "127.0.0.1"\n')
        with subprocess.Popen([str(program("sumac")), "daemon", "--config", str(config)]) as daemon:
            try:
                deadline = time.monotonic() + TEST_TIMEOUT
                while not socket.exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                self.check_codes(self.start("one_daemon", SUMAC_SOCKET=str(socket)), 0, 0)
            finally:
                daemon.terminate()

    def test_a_group_has_backends_of_devices(self) -> None:
        from sumac.torch.base import IS_BACKEND

        if not IS_BACKEND:
            self.skipTest("this torch has no Backend that Python may subclass: make torch-stacks")
        self.check_codes(self.start("backend_of_devices"), 0, 0)

    def test_a_missing_daemon_is_named(self) -> None:
        self.check_codes(self.start("no_daemon"), 0, 0)

    def test_torchrun_trains_as_with_gloo_after_a_restart_too(self) -> None:
        if lacks_libuv():
            self.skipTest("this torch is built without libuv, which its torchrun asks for")
        runs = [("--backend", "gloo"), ("--backend", "sumac", "--plugin", "sumac.torch", "--fail-once")]
        with concurrent.futures.ThreadPoolExecutor() as executor:
            losses = list(executor.map(self.loss_of, runs))
        self.assertAlmostEqual(*losses, delta=1e-3)

    def loss_of(self, arguments: tuple[str, ...]) -> float:
        """Runs ``train_ddp.py`` and returns its loss."""
        # --standalone has a fixed port. Debian 12's torchrun fails without -r and -t.
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv_backend=c10d",
                   "--rdzv_endpoint=localhost:0"]
        command += ["--nproc_per_node=2", "--max_restarts=1", "--monitor_interval=0.1", "-r", "1", "-t", "1"]
        command += ["--log_dir", str(self.lab.path / "logs"), str(PYTHON / "tests" / "train_ddp.py"),
                    *arguments]
        more = {"SUMAC_SOCKET": str(self.lab.path / "host{local_rank}.sock")}
        ran = subprocess.run(
            command, env=environment(self.lab, 0, **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
            timeout=TEST_TIMEOUT * 2, check=False,
        )
        found = re.findall(r"loss ([\d.]+)", ran.stdout)
        self.assertTrue(found, ran.stdout)
        if "gloo" not in arguments:  # On a busy machine PyTorch 2.15 with Gloo may abort after the last line.
            self.assertEqual((ran.returncode, len(found)), (0, 1), ran.stdout)
        return float(found[0])


@unittest.skipIf(why_not(), why_not() or "")
class FewJobs(OfTwoRanks):
    """An aggregator that lets a host have ten jobs."""

    share = 1

    def test_the_limit_of_jobs_is_named(self) -> None:
        self.check_codes(self.start("job_limit", SUMAC_MODE="direct"), 0, 0)


if __name__ == "__main__":
    unittest.main()
