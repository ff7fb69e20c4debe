"""The choice of kernels, the archive of the initramfs, and the reading of a console."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

FOLDER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(FOLDER))

import cross
import disk
import image
import kernels
import machine
import matrix
import run
import suites
from architecture import AMD64, ARM64
from archive import Unreachable

NAMES = """
linux-image-6.1.0-47-amd64
linux-image-6.1.0-50-amd64
linux-image-6.1.0-50-amd64-unsigned
linux-image-6.1.0-50-cloud-amd64
linux-image-6.1.0-50-rt-amd64
linux-image-6.12.95+deb12-amd64
linux-image-6.12.95+deb12-amd64-dbg
linux-binary-6.19.14+deb13-cloud-amd64
linux-image-6.19.14+deb13-cloud-amd64
linux-base-7.2.9+deb13-amd64
linux-binary-7.2.9+deb13-amd64
linux-image-7.2.9+deb13-amd64
linux-modules-7.2.9+deb13-amd64
linux-binary-7.2.13+deb14-amd64
linux-image-7.2.13+deb14-amd64
linux-image-7.2.13+deb14-rt-amd64
linux-modules-7.2.13+deb14-amd64
linux-image-6.12.95+deb12-cloud-arm64
linux-image-6.12.95+deb12-arm64
""".split()

CONSOLE = """vm: Linux 7.2.13+deb14-amd64
RESULT|igb, copy|ok|xdp_mode:driver zero_copy:false
RESULT|igb, auto|failed|exit code 1: small packets are answered | and more
vm: complete
"""


class TestNames(unittest.TestCase):
    def test_packages_of_one_folder_name_keep_both_their_tests(self) -> None:
        def artifact(folder: str, kind: str, name: str) -> dict:
            return {"manifest_path": f"/work/{folder}/Cargo.toml", "target": {"kind": [kind], "name": name}}

        libraries = [artifact("userspace/host", "lib", "sumac_host"),
                     artifact("nic-agg/host", "lib", "sumac_agg_host")]
        self.assertEqual(list(map(run.test_name, libraries)), ["host", "agg_host"])
        self.assertEqual(run.test_name(artifact("nic-agg", "test", "slots")), "nic-agg-slots")


class Kernels(unittest.TestCase):
    def test_the_latest_of_a_version_is_chosen_with_its_packages(self) -> None:
        table = [
            ("6.1", False, "6.1.0-50-amd64", ["linux-image-6.1.0-50-amd64"]),
            ("6.1", True, "6.1.0-50-cloud-amd64", ["linux-image-6.1.0-50-cloud-amd64"]),
            ("6.1.0-47", False, "6.1.0-47-amd64", ["linux-image-6.1.0-47-amd64"]),
            ("6.19", True, "6.19.14+deb13-cloud-amd64",
             [f"linux-{part}-6.19.14+deb13-cloud-amd64" for part in ("binary", "image")]),
            # By number: 13 is later than 9.
            ("7.2", False, "7.2.13+deb14-amd64",
             [f"linux-{part}-7.2.13+deb14-amd64" for part in ("binary", "image", "modules")]),
            ("7.2.9", False, "7.2.9+deb13-amd64",
             [f"linux-{part}-7.2.9+deb13-amd64" for part in ("binary", "image", "modules")]),
        ]
        for version, is_cloud, release, packages in table:
            with self.subTest(version=version, is_cloud=is_cloud):
                chosen = kernels.choose(version, is_cloud, NAMES)
                assert chosen is not None
                self.assertEqual((chosen.release, list(chosen.packages)), (release, packages))

    def test_a_version_is_no_prefix_of_a_number(self) -> None:
        for version in ("6", "7.2.1", "5.10"):
            chosen = kernels.choose(version, False, NAMES)
            expected = "6.12.95+deb12-amd64" if version == "6" else None
            self.assertEqual(chosen and chosen.release, expected, version)

    def test_another_architecture_has_kernels_of_its_own(self) -> None:
        for is_cloud, release in ((True, "6.12.95+deb12-cloud-arm64"), (False, "6.12.95+deb12-arm64")):
            chosen = kernels.choose("6.12", is_cloud, NAMES, ARM64)
            assert chosen is not None
            self.assertEqual((chosen.release, chosen.packages), (release, (f"linux-image-{release}",)))

    def test_versions_are_in_ascending_order(self) -> None:
        self.assertEqual(kernels.versions(NAMES), ["6.1", "6.12", "6.19", "7.2"])


class Images(unittest.TestCase):
    def test_an_archive_has_each_file_at_a_multiple_of_four(self) -> None:
        files = [("/bin", 0o040755, b""), ("/bin/odd", 0o100755, b"seven b"), ("/empty", 0o100644, b"")]
        archive, found, at = b"".join(image.cpio(files)), [], 0
        while at < len(archive):
            self.assertEqual(archive[at : at + 6], b"070701")
            fields = [int(archive[at + 6 + 8 * field :][:8], 16) for field in range(13)]
            mode, length, name_length = fields[1], fields[6], fields[11]
            name = archive[at + 110 :][: name_length - 1].decode()
            at += (110 + name_length + 3) // 4 * 4
            found.append((name, mode, archive[at:][:length]))
            at += (length + 3) // 4 * 4
        self.assertEqual(found, [(path[1:], *rest) for path, *rest in files] + [("TRAILER!!!", 0, b"")])

    def test_modules_come_after_those_that_they_need(self) -> None:
        def module(*needed: str) -> bytes:
            return b"\x7fELF..\0license=GPL\0depends=" + ",".join(needed).encode() + b"\0name=x\0"

        made = image.Image()
        with tempfile.TemporaryDirectory() as folder:
            for name, needed in (("virtio_net", ["net_failover"]), ("net-failover", ["failover"]),
                                 ("failover", [])):
                Path(folder, f"{name}.ko").write_bytes(module(*needed))
            made.modules(Path(folder), ["virtio-net", "built_in"])
        self.assertEqual(made.content("/modules/order"), b"failover\nnet_failover\nvirtio_net\n")

    def test_a_program_comes_with_what_it_is_linked_with(self) -> None:
        made = image.Image()
        made.program(Path("/usr/bin/env"), "/usr/bin/env")
        libc = [path for path in made.paths() if path.endswith("/libc.so.6")]
        self.assertEqual(len(libc), 1, "the library at one of its paths")
        interpreter = [path for path in made.paths() if "/ld-linux" in path]
        self.assertTrue(set(interpreter) & set(image.needed_libraries(Path("/usr/bin/env"))), interpreter)

    def test_files_are_laid_into_a_folder_that_has_others(self) -> None:
        made = image.Image()
        made.add("/etc/name", b"new")
        made.add("/bin/run", b"#!", is_program=True)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "etc").mkdir()
            Path(folder, "etc/other").write_bytes(b"old")
            made.lay(Path(folder))
            found = {path.name: path.read_bytes() for path in Path(folder).glob("*/*")}
            self.assertEqual(found, {"name": b"new", "other": b"old", "run": b"#!"})
            self.assertEqual(Path(folder, "bin/run").stat().st_mode & 0o777, 0o755)

    def test_numpys_header_is_aligned(self) -> None:
        for path, content in suites.arrays():
            values = 0 if path == "/data/large.npy" else suites.ELEMENTS
            self.assertEqual(len(content), 128 + 4 * values, path)


class Consoles(unittest.TestCase):
    def test_results_are_read(self) -> None:
        outcome = machine.Outcome(CONSOLE, True)
        self.assertEqual(outcome.results()[0], ("igb, copy", "ok", "xdp_mode:driver zero_copy:false"))
        self.assertEqual([result[1] for result in outcome.results()], ["ok", "failed"])
        self.assertIsNone(outcome.oops())

    def test_a_fault_of_the_guests_kernel_is_seen(self) -> None:
        table = [
            ("[    3.141592] Oops: int3: 0000 [#1] PREEMPT SMP", True),
            ("[   63.1] BUG: unable to handle page fault for address: 0", True),
            ("[ 9.9] Kernel panic - not syncing: Attempted to kill init!", True),
            ("[   12.2] virtio_net virtio0 agg0: NETDEV WATCHDOG", False),
            ("sumac: BUG: is no word of the kernel", False),
        ]
        for line, is_oops in table:
            outcome = machine.Outcome(f"vm: Linux\n{line}\nmore\n", False)
            self.assertEqual(outcome.oops() is not None, is_oops, line)

    def test_each_nic_has_a_port_of_the_hub_and_a_slot_of_its_own(self) -> None:
        nics = enumerate([machine.Nic("a", "igb"), machine.Nic("b", "virtio-net-pci")])
        one = machine.Machine("", list(nics))
        made = " ".join(machine.arguments(one, Path("/f"), is_first=True))
        for expected in ("hubport,id=port1,hubid=0", "igb,bus=root0,netdev=port0,mac=52:54:00:00:00:00",
                         "virtio-net-pci,bus=root1,netdev=port1,mac=52:54:00:00:00:01"):
            self.assertIn(expected, made)

    def test_a_disk_is_for_a_boot_and_unchanged_by_it(self) -> None:
        self.assertNotIn("-drive", machine.Boot(Path("k"), Path("i")).arguments())
        made = " ".join(machine.Boot(Path("k"), Path("i"), Path("d")).arguments())
        self.assertIn("file=d,format=raw,if=none,id=disk,snapshot=on", made)

    def test_machines_of_a_suite_are_joined_by_cables(self) -> None:
        [suite] = [suite for suite in suites.SUITES if suite.is_apart]
        machines = suite.machines()
        self.assertEqual([one.role for one in machines], ["agg", "0", "1"])
        first, *others = [" ".join(machine.arguments(one, Path("/f"), one is machines[0])) for one in machines]
        for number, other in enumerate(others, 1):
            path = f"addr.type=unix,addr.path=/f/cable{number}"
            self.assertIn(f"server=on,{path}", first)
            self.assertIn(f"server=off,{path}", other)
            self.assertIn(f"mac={machine.mac(number)}", other)

    def test_the_last_machines_end_is_the_end(self) -> None:
        class Shell(machine.Emulator):
            def command(self) -> list[str]:
                return ["sh", "-c", 'case $* in *role=agg*) sleep 60;; *) echo "vm: complete";; esac', "sh"]

        machines = [machine.Machine(role, []) for role in ("agg", "0", "1")]
        with tempfile.TemporaryDirectory() as folder:
            shell = Shell(AMD64, Path("sh"))
            log = Path(folder, "log.log")
            # Within the deadline, which is shorter than the first machine's sleep.
            outcome = machine.boot(shell, machine.Boot(Path("k"), Path("i")), machines, 30, log)
            self.assertTrue(outcome.is_complete, outcome.console)
            outcome = machine.boot(shell, machine.Boot(Path("k"), Path("i")), machines[:1], 0, log)
            self.assertFalse(outcome.is_complete)


class Tables(unittest.TestCase):
    RESULTS = [("virtio, auto", "ok", "backend:xdp zero_copy:true"), ("virtio, udp", "ok", "backend:udp"),
               ("igb, auto", "failed", "no"), ("igb, zerocopy", "refused", "driver")]

    def test_results_become_a_table_by_kernel_and_driver(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder, "kernels.json")
            for release in ("7.2.13+deb14-amd64", "6.12.95+deb12-amd64"):
                matrix.add("zerocopy", release, self.RESULTS, record)
            matrix.add("zerocopy", "6.12.95+deb12-amd64", self.RESULTS[:1], record)
            self.assertEqual(matrix.tables(record), """`make test-vm SUITE=zerocopy`:

| Linux |  | auto | udp | zerocopy |
| --- | --- | --- | --- | --- |
| 6.12.95+deb12-amd64 | virtio | zero-copy |  |  |
| 7.2.13+deb14-amd64 | virtio | zero-copy | UDP |  |
| 7.2.13+deb14-amd64 | igb | **failed** |  | refused |
""")

    def test_the_page_has_the_tables_of_the_record(self) -> None:
        text = matrix.PAGE.read_text()
        self.assertEqual(text, matrix.page(text, matrix.tables()), "tools/vm/matrix.py writes them anew")


class Suites(unittest.TestCase):
    def test_scripts_of_a_suite_are_there(self) -> None:
        for suite in suites.SUITES:
            made = image.Image()
            suite.add_to(made)
            self.assertGreater(len(made.content("/suite.sh")), 0, suite.name)
            self.assertEqual(made.content("/name").decode().strip(), suite.name)


    def test_what_a_disk_lacks_is_named(self) -> None:
        with mock.patch("os.geteuid", return_value=0), mock.patch("shutil.which", return_value=None):
            self.assertRegex(disk.lacking() or "", r"mmdebstrap.*tools/setup\.sh --test")

    def test_a_suite_that_cannot_run_hides_no_failure(self) -> None:
        with mock.patch("run.Guests") as guests, mock.patch("builtins.print"), mock.patch("run.SUMAC", ()):
            endings: tuple[tuple[list[object], int], ...] = (
                ([True, Unreachable("no")], 0),
                ([False, Unreachable("no")], 1),
                ([disk.CommandError("apt-get: unmet dependencies"), True], 1),
            )
            for outcomes, code in endings:
                guests.return_value.run.side_effect = [*outcomes, *[True] * (len(suites.SUITES) - 2)]
                self.assertEqual(run.main([]), code)

    def test_suites_with_a_pcs_nics_or_packages_are_refused_elsewhere(self) -> None:
        with mock.patch("builtins.print"), mock.patch("run.Guests") as guests:
            for suite in ("systemd", "zerocopy"):
                self.assertEqual(run.main(["--architecture", "arm64", "--suite", suite]), 2)
        guests.assert_not_called()


class OtherProcessors(unittest.TestCase):
    def test_without_a_cross_compiler_the_remedy_is_named(self) -> None:
        with mock.patch("shutil.which", return_value=None), self.assertRaisesRegex(Unreachable, "--arm64"):
            cross.environment(ARM64)

    def test_each_machine_has_its_own_console_and_board(self) -> None:
        for architecture, console in ((AMD64, "ttyS0"), (ARM64, "ttyAMA0")):
            emulator = machine.Emulator(architecture, Path("qemu"))
            made = " ".join(machine.command(emulator, machine.Boot(Path("k"), Path("i")), ""))
            self.assertIn(f"console={console} ", made)
            self.assertIn(" ".join(architecture.machine), made)
