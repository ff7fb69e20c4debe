"""The life of the packages on one machine, by the commands of docs/install.md: install, configure, sum,
restart, upgrade, remove, purge.

    trainer --- sumac.service (AF_XDP) 10.77.1.2 eth1 ---- port1 10.77.1.1 +
                                                                           +--- sumac-agg.service, network
                                                                           namespace `agg`
    trainer --- a daemon over UDP      10.77.2.2 eth2 ---- port2 10.77.2.1 +

The second daemon stands for another host: it has a network namespace, `other`. The tests run in the order of
their names; each needs what those before it have done.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from debian_tree import CommandError

from .debian import Debian

ROOT = pathlib.Path(__file__).resolve().parents[3]
NEXT_VERSION = "0.9.0"
WORST_EXPOSURE = {"sumac": 2.7, "sumac-agg": 2.2}
"""The scores of `systemd-analyze security` that docs/deployment/systemd.md states."""

EDITED = {
    "/etc/default/sumac-agg": 'ATTACH="port1 port2 --slots 512"\nSERVE="--listen 0.0.0.0:48600"\n',
    "/etc/sumac/daemon.toml": """\
aggregator = "10.77.1.1:48600"
secret_file = "/etc/sumac/token"
interface = "eth1"
backend = "xdp"
[[allow]]
groups = ["sumac"]
jobs = ["{user}:*"]
""",
}
"""The files that the documentation has an administrator edit."""
OTHER = """\
aggregator = "10.77.2.1:48600"
secret_file = "/etc/sumac/token"
socket = "/run/other/sumac.sock"
backend = "udp"
[[allow]]
groups = ["sumac"]
jobs = ["{user}:*"]
"""
# A veth takes frames of its peer's program with GRO, and programs take packets with whole checksums.
NETWORK = """\
ip link set lo up
ip netns add agg
ip netns add other
ip link add eth1 type veth peer port1 netns agg
ip link add eth2 netns other type veth peer port2 netns agg
ip addr add 10.77.1.2/24 dev eth1
ip link set eth1 up
nsenter --net=/run/netns/other sh -ec 'ip link set lo up; ip addr add 10.77.2.2/24 dev eth2
    ethtool -K eth2 gro on tx off; ip link set eth2 up'
nsenter --net=/run/netns/agg sh -ec 'ip link set lo up
    for n in 1 2; do ip addr add 10.77.$n.1/24 dev port$n; ip link set port$n up; done'
"""
TRAINER = """\
import sys
import sumac
rank, job, socket = int(sys.argv[1]), sys.argv[2], sys.argv[3]
with sumac.Client(socket) as client, client.open(job, rank=rank, world=2) as job:
    gradients = job.buffer(100_000, "float32")
    gradients[:] = rank + 1
    job.allreduce(gradients)
    print(sumac.__file__, set(gradients.tolist()))
"""

LASTING = """\
import pathlib
import sys
import sumac
rank, job, socket, reloaded = int(sys.argv[1]), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
with sumac.Client(socket) as client, client.open(job, rank=rank, world=2) as job:
    values, last = job.buffer(100_000, "float32"), job.buffer(1, "int32")
    rounds = after = 0
    while after < 20:
        values[:], last[:] = rounds + rank, reloaded.exists()
        job.allreduce(values)
        job.allreduce(last)
        assert set(values.tolist()) == {2.0 * rounds + 1}, (rounds, set(values.tolist()))
        rounds, after = rounds + 1, after + (last[0] == 2)
        if rounds == 20:
            pathlib.Path(f"{reloaded}.{rank}").touch()
    print("exact over the reload")
"""
"""A trainer that sums before, during and after a reload."""


def documented(heading: str) -> list[str]:
    """Returns the commands below a heading of docs/install.md, without comments."""
    section = (
        (ROOT / "docs/install.md")
        .read_text()
        .split(f"{heading}\n")[1]
        .split("\n#")[0]
        .split("*From source*")[0]
    )
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).splitlines()
    return [line.split("  # ")[0].strip() for line in lines]


def lacking() -> str | None:
    """Returns what these tests lack, if anything."""
    if os.geteuid() != 0:
        return "needs root, for a Debian tree and its namespaces"
    if any(shutil.which(name) is None for name in ("mmdebstrap", "cargo-deb")):
        return "needs what `tools/setup.sh --test` installs"
    return None


def programs() -> pathlib.Path:
    """Returns the folder of the built programs."""
    return pathlib.Path(os.environ.get("SUMAC_BIN_DIR") or ROOT / "target/release")


@functools.cache
def built() -> pathlib.Path:
    """Builds the packages of two versions, and returns the folder of both."""
    folder = tempfile.TemporaryDirectory(prefix="sumac-packages-")
    unittest.addModuleCleanup(folder.cleanup)
    for version in ("0.1.0", NEXT_VERSION):
        package = [str(ROOT / "tools/packaging/package.sh"), str(programs()), "--fast", "--version", version]
        output = os.path.join(folder.name, version)
        subprocess.run([*package, "--output", output], check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(folder.name)


class Packages(unittest.TestCase):
    release = "bookworm"
    debian: Debian
    built: pathlib.Path

    @classmethod
    def setUpClass(cls) -> None:
        if (why := lacking()) is not None:
            if os.environ.get("REQUIRE_PRIVILEGED") == "1":
                raise AssertionError(why)
            raise unittest.SkipTest(why)
        cls.built = built()
        # python3-pip installs the wheel; iproute2 and ethtool make the test's network.
        cls.debian = Debian(cls.release, ["systemd", "python3-pip", "iproute2", "ethtool", "man-db"])
        cls.addClassCleanup(cls.debian.close)
        for version in ("0.1.0", NEXT_VERSION):
            shutil.copytree(cls.built / version / "debian", cls.debian.root / "built" / version)
        shutil.copytree(cls.built / "0.1.0/wheels", cls.debian.root / "built/wheels")
        cls.debian.write("/etc/apt/apt.conf.d/assume-yes", 'APT::Get::Assume-Yes "true";\n')
        cls.debian.download(
            *(f"/built/0.1.0/{path.name}" for path in (cls.debian.root / "built/0.1.0").glob("*.deb"))
        )
        cls.debian.boot()

    def active(self, unit: str) -> str:
        return self.debian.inside("systemctl", "is-active", unit, check=False).strip()

    def main_pid(self, unit: str) -> int:
        return int(self.debian.inside("systemctl", "show", "--property=MainPID", "--value", unit))

    def privileges(self, unit: str) -> dict[str, str]:
        """Returns the status of a unit's main process, by field."""
        status = self.debian.inside("cat", f"/proc/{self.main_pid(unit)}/status")
        return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    def follow(self, commands: list[str], version: str = "0.1.0") -> None:
        """Does as the documentation says, as root, in a folder with the packages of a version."""
        for command in commands:
            if (edited := re.match(r"editor (\S+)$", command)) is not None:
                self.debian.write(edited[1], EDITED[edited[1]])
            else:
                try:
                    self.debian.inside(
                        "sh", "-ec", f"cd /built/{version}; {command}", DEBIAN_FRONTEND="noninteractive"
                    )
                except CommandError as error:
                    journal = self.debian.inside("journalctl", "--no-pager", "--lines=40", check=False)
                    raise AssertionError(f"{error}\n{journal}") from error

    def sum(self, name: str) -> list[str]:
        """Sums on both hosts, as a user of the group sumac: by Debian's package, and by the wheel."""
        trainer = ("setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "python3",
                   "/built/trainer.py")
        script = [
            "sh",
            "-c",
            '"$@" 0 "$JOB" /run/sumac/sumac.sock & PYTHONPATH=/opt/wheel "$@" 1 "$JOB" /run/other/sumac.sock; wait $!',
            "sh",
        ]
        return self.debian.inside(*script, *trainer, JOB=f"alice:{name}").split("\n")

    def assert_sums(self, name: str) -> None:
        printed = self.sum(name)
        self.assertIn("/usr/lib/python3/dist-packages/sumac/__init__.py {3.0}", printed)
        self.assertIn("/opt/wheel/sumac/__init__.py {3.0}", printed)

    def test_1_apt_installs_the_packages_with_what_they_need(self) -> None:
        inside = self.debian.inside
        self.assertFalse(
            pathlib.Path(self.debian.root / "usr/bin/gcc").exists(), "the machine has no tool chain"
        )
        self.follow([command for command in documented("# Install") if command.startswith("apt ")])
        inside("python3", "-m", "pip", "install", "--no-index", "--no-deps", "--target", "/opt/wheel",
               "/built/wheels/sumac-0.1.0-py3-none-any.whl")
        for program in ("sumac", "sumac-agg"):
            self.assertRegex(inside(program, "--version"), rf"^{program} \d")
            self.assertIn("libc6", inside("dpkg-query", "--show", "--showformat=${Depends}", program))
            self.assertIn(program, inside("sh", "-c", f"MANPAGER=cat man {program}"))
            completions = inside(
                "bash", "-c", f"source /usr/share/bash-completion/completions/{program}; complete -p"
            )
            self.assertRegex(completions, rf"-F \S+ {program}\n")
            self.assertEqual(inside("systemctl", "is-enabled", program, check=False).strip(), "disabled")
            self.assertEqual(self.active(program), "inactive")
        self.assertIn("libelf1", inside("dpkg-query", "--show", "--showformat=${Depends}", "sumac"))
        if list((self.built / "0.1.0/debian").glob("libsumac0_*.deb")):
            self.follow(["apt install ./libsumac0_*.deb ./libsumac-dev_*.deb"])
            self.assertIn("libsumac.so.0 ", inside("ldconfig", "--print-cache"))
            self.assertIn("libsumac.so.0", inside("sh", "-c", "readlink /usr/lib/*/libsumac.so"))
        if list((self.built / "0.1.0/debian").glob("libnccl-net-sumac_*.deb")):
            self.follow(["apt install ./libnccl-net-sumac_*.deb"])
            # As NCCL does it.
            inside("python3", "-c", "import ctypes; ctypes.CDLL('libnccl-net-sumac.so').ncclNetPlugin_v8")
        self.assertRegex(inside("id", "sumac"), r"uid=\d+\(sumac\) gid=\d+\(sumac\)")
        conffiles = inside("dpkg-query", "--show", "--showformat=${Conffiles}", "sumac", "sumac-agg")
        self.assertEqual(
            re.findall(r"/etc/\S+", conffiles), ["/etc/sumac/daemon.toml", "/etc/default/sumac-agg"]
        )

    def test_2_the_units_are_valid_and_confined(self) -> None:
        units = [
            f"/usr/lib/systemd/system/{name}.service"
            for name in ("sumac", "sumac-pins", "sumac-agg", "sumac-agg-pins")
        ]
        self.assertEqual(self.debian.inside("systemd-analyze", "verify", "--man=no", *units), "")
        for program, worst in WORST_EXPOSURE.items():
            report = self.debian.inside("systemd-analyze", "security", "--no-pager", program)
            score = float(re.findall(rf"exposure level for {program}\.service: ([\d.]+)", report)[0])
            self.assertLessEqual(score, worst, report)

    def test_3_configured_hosts_sum_through_the_aggregator(self) -> None:
        inside, write = self.debian.inside, self.debian.write
        inside("sh", "-ec", NETWORK)
        write(
            "/etc/systemd/system/sumac-agg.service.d/test.conf",
            "[Service]\nNetworkNamespacePath=/run/netns/agg\n",
        )
        write("/etc/systemd/system/sumac.service.d/test.conf", "[Service]\nWatchdogSec=2\n")
        write("/etc/sumac/other.toml", OTHER)
        write("/built/trainer.py", TRAINER)
        inside("useradd", "alice")
        inside("systemctl", "daemon-reload")
        self.follow([command for command in documented("# Install") if not command.startswith("apt ")])
        inside(
            "systemd-run", "--unit=other", "--service-type=notify", "--property=User=sumac",
            "--property=RuntimeDirectory=other",
            "--property=NetworkNamespacePath=/run/netns/other", "sumac", "daemon", "--config",
            "/etc/sumac/other.toml",
        )
        self.assert_sums("first")
        self.assertIn('"xdp"', inside("sumac", "status", "--json"))
        for unit in ("sumac", "sumac-agg"):
            self.assertIn(
                "pinned at", inside("journalctl", f"--unit={unit}", "--no-pager"), "what `attach` reports"
            )

    def test_4_the_services_have_the_privileges_that_they_need_and_no_others(self) -> None:
        # By bit: NET_ADMIN 12, NET_RAW 13, PERFMON 38, BPF 39.
        for unit, capabilities in (("sumac", 0xC0_0000_3000), ("sumac-agg", 0xC0_0000_1000)):
            status = self.privileges(unit)
            for field in ("CapPrm", "CapEff"):
                self.assertEqual(int(status[field], 16), capabilities, f"{unit}: {field}")
            for field in ("CapInh", "CapAmb"):
                self.assertEqual(int(status[field], 16), 0, f"{unit}: {field}")
            self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
            self.assertNotIn("0", status["Uid"].split(), "a user of its own")
        token = self.debian.inside("nsenter", "--net=/run/netns/agg", "sumac-agg", "token")
        self.assertEqual(token, self.debian.inside("cat", "/etc/sumac/token"),
                         "root reads the secret of the running service")
        # Root's own attach leaves the pins to the service.
        self.debian.inside("systemctl", "stop", "sumac")
        self.debian.inside("sumac", "attach", "eth1")
        owners = self.debian.inside("find", "/sys/fs/bpf/sumac/host", "-printf", "%u\\n").split()
        self.assertEqual(set(owners), {"sumac"})
        self.debian.inside("systemctl", "start", "sumac")
        self.assert_sums("after-attach")

    def test_5_a_daemon_that_hangs_is_started_again(self) -> None:
        before = self.main_pid("sumac")
        self.debian.inside("systemctl", "kill", "--signal=STOP", "sumac")
        self.debian.wait(
            lambda: self.main_pid("sumac") not in (0, before), "the watchdog has ended the daemon"
        )
        self.debian.wait(lambda: self.active("sumac") == "active", "the daemon is started again")
        journal = self.debian.inside("journalctl", "--unit=sumac", "--no-pager")
        self.assertIn("Failed with result 'watchdog'", journal)
        self.assertIn("listening for trainers", journal)
        self.assert_sums("after-watchdog")

    def test_5_reload_takes_the_running_jobs_over(self) -> None:
        inside = self.debian.inside
        before, privileges = self.main_pid("sumac"), self.privileges("sumac")
        self.debian.write("/built/lasting.py", LASTING)
        inside("install", "-d", "-o", "alice", "/run/reload")
        trainer = "setpriv --reuid=alice --regid=alice --init-groups python3 /built/lasting.py"
        printed = inside("sh", "-ec", f"""
            {trainer} 0 alice:reload /run/sumac/sumac.sock /run/reload/done & first=$!
            PYTHONPATH=/opt/wheel {trainer} 1 alice:reload /run/other/sumac.sock /run/reload/done & second=$!
            timeout 60 sh -c 'until [ -e /run/reload/done.0 ] && [ -e /run/reload/done.1 ]; do sleep 0.1; done'
            systemctl reload sumac
            touch /run/reload/done
            wait $first
            wait $second
        """)
        self.assertEqual(printed.count("exact over the reload"), 2, printed)
        self.assertEqual(self.active("sumac"), "active")
        main = self.main_pid("sumac")
        self.assertNotIn(main, (0, before), "the unit follows the new daemon")
        after = self.privileges("sumac")
        for field in ("CapPrm", "CapEff", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Uid"):
            self.assertEqual(after[field], privileges[field], field)
        self.assert_sums("reloaded")
        # Longer than WatchdogSec=2 of these tests: the new daemon feeds it.
        time.sleep(4)
        self.assertEqual((self.active("sumac"), self.main_pid("sumac")), ("active", main))

    def test_6_an_upgrade_keeps_configuration_and_restarts(self) -> None:
        before = {unit: self.main_pid(unit) for unit in ("sumac", "sumac-agg")}
        secret = self.debian.inside("cat", "/etc/sumac/token")
        self.follow(
            [command for command in documented("# Install") if command.startswith("apt ")], NEXT_VERSION
        )
        for unit, pid in before.items():
            self.assertEqual(
                self.debian.inside("dpkg-query", "--show", "--showformat=${Version}", unit), NEXT_VERSION
            )
            self.assertEqual(self.active(unit), "active")
            self.assertNotEqual(self.main_pid(unit), pid, "the new release runs")
        self.assertEqual(
            self.debian.inside("cat", "/etc/sumac/daemon.toml"), EDITED["/etc/sumac/daemon.toml"]
        )
        self.assertEqual(self.debian.inside("nsenter", "--net=/run/netns/agg", "sumac-agg", "token"), secret)
        self.assert_sums("upgraded")

    def test_7_removal_and_purge_leave_nothing(self) -> None:
        inside = self.debian.inside
        inside("systemctl", "stop", "other")
        inside("apt", "purge", "libsumac*", check=False)
        inside("apt", "purge", "libnccl-net-sumac", check=False)
        inside("apt", "remove", "sumac", "sumac-agg", "python3-sumac")
        self.assertEqual([self.active(unit) for unit in ("sumac", "sumac-agg")], ["inactive"] * 2)
        self.assertNotIn("xdp", inside("ip", "link", "show", "eth1"))
        self.assertNotIn("xdp", inside("ip", "-netns", "agg", "link", "show"))
        self.assertEqual(inside("cat", "/etc/sumac/daemon.toml"), EDITED["/etc/sumac/daemon.toml"],
                         "configuration outlives the removal")
        purge, remove_rest = documented("## Uninstall")
        self.follow([purge])
        # What the test itself has written, and dpkg's and systemd's records.
        own = "^/(built|opt|proc|sys|var/log|var/lib/(dpkg|apt)|var/cache|etc/systemd/system/.*[.]d|etc/(group|passwd|shadow).*)(/|$)"
        found = inside("find", "/", "-xdev", "-regextype", "egrep", "-regex", own, "-prune", "-o", "-name",
                       "*sumac*", "-print")
        self.assertEqual(found.split(), ["/etc/sumac"])
        self.assertEqual(
            sorted(inside("ls", "/etc/sumac").split()), ["other.toml", "token"], "the site's own files"
        )
        self.follow([remove_rest])
        self.assertEqual(inside("find", "/sys/fs/bpf", "-name", "sumac*"), "")


class PackagesOnDebian13(Packages):
    release = "trixie"


if __name__ == "__main__":
    unittest.main()
