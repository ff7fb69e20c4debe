"""Programs in C over libsumac, as installed, in a lab of real daemons on the loopback interface.

``cargo test --workspace`` builds what they need: the daemons' programs, and ``libsumac`` in
``target/debug/deps``.
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
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = ROOT / "userspace/c"
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
# The functions of glibc beyond ISO C: threads and poll.
C11 = ["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", *STRICT]

# The Python package, and the lab of its tests.
sys.path.insert(0, str(ROOT / "userspace/python"))
_spec = importlib.util.spec_from_file_location("sumac_lab", ROOT / "userspace/python/tests/lab.py")
assert _spec is not None and _spec.loader is not None
lab = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lab)


def built() -> pathlib.Path | None:
    """Returns the folder of the newest libsumac."""
    folder = os.environ.get("SUMAC_BIN_DIR")
    places = [pathlib.Path(folder)] if folder else [ROOT / "target" / kind for kind in ("release", "debug")]
    places += [place / "deps" for place in places]
    found = [
        place for place in places if (place / "libsumac.so").exists() and (place / "libsumac.a").exists()
    ]
    return max(found, key=lambda place: (place / "libsumac.so").stat().st_mtime, default=None)


def ready() -> bool:
    """Returns whether all is built; where the programs' folder is named, as `make test` does, it must be."""
    return "SUMAC_BIN_DIR" in os.environ or bool(
        built() and lab.program("sumac") and lab.program("sumac-agg")
    )


@unittest.skipUnless(ready(), "libsumac, sumac and sumac-agg are not built: cargo build")
class Programs(unittest.TestCase):
    """The library as ``make install`` lays it out, in a folder of its own."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="sumac-c-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name)
        cls.libraries = cls.path / ".local/lib"
        cls.install(PREFIX=str(cls.path / ".local"))
        cls.lab = lab.Lab()
        cls.addClassCleanup(cls.lab.stop)

    @staticmethod
    def install(**variables: str) -> None:
        """Runs what `make install` runs after the build."""
        subprocess.run([str(HERE / "install.sh"), str(built())], check=True, env={**os.environ, **variables})

    def flags(self, *which: str) -> list[str]:
        """Returns the flags that pkg-config has for the installed library."""
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.libraries / "pkgconfig")}
        return subprocess.check_output(["pkg-config", *which, "sumac"], env=environment, text=True).split()

    def build(
        self, source: pathlib.Path, compiler: Sequence[str] = C11, flags: Sequence[str] = ()
    ) -> pathlib.Path:
        """Compiles a program with warnings as errors."""
        program = self.path / f"{source.stem}-{len(flags)}"
        command = [*compiler, str(source), *flags, *self.flags("--cflags", "--libs"), "-lm", "-o",
                   str(program)]
        outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(outcome.returncode, 0, outcome.stdout)
        self.assertEqual(outcome.stdout, "")
        return program

    def start(self, program: pathlib.Path, rank: int, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.libraries),
            "SUMAC_SOCKET": self.lab.socket(rank),
            "RANK": str(rank),
            "WORLD_SIZE": "2",
        }
        command = [str(program), *arguments]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def outputs(self, program: pathlib.Path, arguments: Sequence[Sequence[str]] = ((), ())) -> list[str]:
        """Runs a program as both ranks, and returns what they print."""
        processes = [self.start(program, rank, *arguments[rank]) for rank in range(2)]
        try:
            texts = [process.communicate(timeout=2 * lab.TEST_TIMEOUT) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        self.assertEqual([process.returncode for process in processes], [0, 0], texts)
        return [out for out, _ in texts]

    def test_every_function_does_what_the_header_says(self) -> None:
        outputs = self.outputs(self.build(HERE / "tests/conformance.c"))
        self.assertEqual(outputs, [f"rank {rank}: all is as the header says\n" for rank in range(2)])

    def test_the_example_sums(self) -> None:
        ranks = [(str(rank), "2") for rank in range(2)]
        expected = [f"rank {rank} of 2: every element is 2\n" for rank in range(2)]
        self.assertEqual(self.outputs(self.build(HERE / "examples/allreduce.c"), ranks), expected)

    def test_the_example_links_with_the_static_library(self) -> None:
        flags = [str(self.libraries / "libsumac.a"), *self.flags("--libs-only-l", "--static")]
        flags.remove("-lsumac")
        program = self.path / "static"
        command = [*C11, str(HERE / "examples/pi.c"), *self.flags("--cflags"), *flags, "-o", str(program)]
        subprocess.run(command, check=True)
        self.assertNotIn("libsumac", subprocess.check_output(["readelf", "-d", str(program)], text=True))
        self.assert_pi(program)

    def test_the_small_program_in_the_manner_of_mpi(self) -> None:
        self.assert_pi(self.build(HERE / "examples/pi.c"))

    def assert_pi(self, program: pathlib.Path) -> None:
        root, other = self.outputs(program)
        self.assertRegex(
            root, r"^pi is 3\.1416, the largest of 2 parts 1\.570\d\nthe token was at 2 workers\n$"
        )
        self.assertEqual(other, "")

    def test_the_header_is_good_in_cplusplus(self) -> None:
        program = self.build(HERE / "tests/header.cpp", ["g++", "-std=c++11", *STRICT])
        process = self.start(program, 0)
        process.communicate(timeout=lab.TEST_TIMEOUT)
        self.assertEqual(process.returncode, 0)

    def test_a_program_that_was_compiled_for_another_abi_is_refused(self) -> None:
        text = (HERE / "include/sumac.h").read_text(encoding="utf-8")
        line = "#define SUMAC_ABI_MAJOR 0\n"
        self.assertIn(line, text)
        folder = self.path / "later"
        folder.mkdir()
        (folder / "sumac.h").write_text(text.replace(line, "#define SUMAC_ABI_MAJOR 3\n"), encoding="utf-8")
        program = self.build(HERE / "examples/allreduce.c", flags=[f"-I{folder}"])
        process = self.start(program, 0, "0", "2")
        _, errors = process.communicate(timeout=lab.TEST_TIMEOUT)
        self.assertEqual(process.returncode, 1)
        minor = text.split("#define SUMAC_ABI_MINOR ")[1].split()[0]
        self.assertIn(
            f"the program was compiled for ABI 3.{minor} of libsumac, and libsumac 0.1.0 has ABI 0.{minor}",
            errors,
        )
        self.assertIn("compile the program with the header of the installed library", errors)

    def test_the_quick_start_of_the_document(self) -> None:
        document = (ROOT / "docs/c.md").read_text(encoding="utf-8")
        blocks = {language: text for language, text in re.findall(r"```(\w+)\n(.*?)```", document, re.DOTALL)}
        self.assertEqual(set(blocks), {"console", "c", "sh"})
        (self.lab.path / "first.c").write_text(blocks["c"], encoding="utf-8")
        ran = subprocess.run(
            ["bash", "-c", "set -euo pipefail\n" + blocks["sh"]], cwd=self.lab.path, text=True,
            timeout=lab.TEST_TIMEOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(self.path)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.assertEqual(
            (ran.returncode, sorted(ran.stdout.split("\n"))), (0, ["", "rank 0: 3", "rank 1: 3"])
        )

    def test_a_package_has_its_files_below_destdir(self) -> None:
        root = self.path / "package"
        self.install(DESTDIR=str(root), PREFIX="/usr", LIBDIR="/usr/lib/x86_64-linux-gnu")
        files = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
        names = ["libsumac.a", "libsumac.so", "libsumac.so.0", "libsumac.so.0.1.0", "pkgconfig/sumac.pc"]
        self.assertEqual(
            files, {f"usr/lib/x86_64-linux-gnu/{name}" for name in names} | {"usr/include/sumac.h"}
        )
        pc = (root / "usr/lib/x86_64-linux-gnu/pkgconfig/sumac.pc").read_text(encoding="utf-8")
        self.assertTrue(
            pc.startswith("prefix=/usr\nlibdir=/usr/lib/x86_64-linux-gnu\nincludedir=/usr/include\n"), pc
        )
        self.assertIn("\nVersion: 0.1.0\n", pc)

    def test_the_soname_is_the_abi_and_only_the_functions_of_the_header_are_exported(self) -> None:
        library = str(self.libraries / "libsumac.so")
        dynamic = subprocess.check_output(["readelf", "-d", library], text=True)
        self.assertIn("soname: [libsumac.so.0]", dynamic)
        symbols = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True).split("\n")
        exported = {line.split()[2] for line in symbols if line}
        header = (HERE / "include/sumac.h").read_text(encoding="utf-8")
        self.assertEqual({name for name in exported if not name.startswith("sumac_")}, set())
        self.assertEqual(
            {name for name in exported if f" {name}(" not in header and f"*{name}(" not in header}, set()
        )
        self.assertGreater(len(exported), 30)


if __name__ == "__main__":
    unittest.main()
