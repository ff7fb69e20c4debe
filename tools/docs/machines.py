"""Machines of the deployment guide: an aggregator that routes between workers, as namespaces of this machine.

    worker1 eth1 10.0.1.10 --- 10.0.1.1 PORT [aggregator] PORT 10.0.2.1 --- 10.0.2.10 eth1 worker2

Each has a network, a bpffs, /etc, /run and /var/lib of its own. Addresses are set; routes are the guide's.
"""

from __future__ import annotations

import contextlib
import pathlib
import subprocess

from programs import ROOT, program
from shell import Shell

MOUNTS = """
set -e
mount -t tmpfs tmpfs /run
mkdir /run/etc && cp -a /etc/. /run/etc && mkdir /run/etc/sumac && mount --bind /run/etc /etc
mount -t tmpfs tmpfs /var/lib
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
"""

# Files go to the machine that they are for.
SCP = """#!/bin/sh
case "$2" in {cases} esac
nsenter --target "$pid" --mount --root install -m 600 /dev/stdin "${{2#*:}}" < "$1"
"""


class Machine:
    """A process that holds the namespaces, and a shell in them. `--root`: these tests may themselves run in a
    chroot, which entering a mount namespace leaves."""

    def __init__(self, folder: pathlib.Path) -> None:
        # The bpffs stays as long as this process.
        self._holder = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"])
        self.pid = self._holder.pid
        self._wait_for_namespaces()
        self.root(MOUNTS)
        lab = program("sumac-lab")
        assert lab is not None
        environment = {
            "PATH": f"{folder}/bin:{lab.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder),
            "PYTHONPATH": str(ROOT / "userspace" / "python"),
        }
        work = folder / str(self.pid)
        work.mkdir()
        self.shell = Shell(["nsenter", "--target", str(self.pid), "--net", "--mount", "--root",
                            f"--wd={work}"], work, environment)

    def _wait_for_namespaces(self) -> None:
        own, name = pathlib.Path("/proc/self/ns/mnt"), pathlib.Path(f"/proc/{self.pid}/ns/mnt")
        while (
            name.readlink() == own.readlink()
            or pathlib.Path(f"/proc/{self.pid}/comm").read_text() != "sleep\n"
        ):
            if self._holder.poll() is not None:
                raise RuntimeError("unshare made no namespaces; is this root?")

    def root(self, script: str) -> None:
        """Runs commands in the machine, before the guide's."""
        command = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--root", "sh", "-c", script]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        self.shell.stop()
        self._holder.kill()
        self._holder.wait()


class Site:
    """A machine with a port towards each worker, and the workers."""

    def __init__(self, folder: pathlib.Path, aggregator: str, ports: tuple[str, ...]) -> None:
        (folder / "bin").mkdir()
        with contextlib.ExitStack() as stack:
            self._machines: dict[str, Machine] = {}
            for name in (aggregator, *(f"worker{number}" for number in range(1, len(ports) + 1))):
                self._machines[name] = Machine(folder)
                stack.callback(self._machines[name].stop)
            for number, port in enumerate(ports, 1):
                self._connect(self._machines[aggregator], port, number)
            self._make_scp(folder / "bin" / "scp")
            self._stack = stack.pop_all()
        self.shells = {name: machine.shell for name, machine in self._machines.items()}

    def _connect(self, aggregator: Machine, port: str, number: int) -> None:
        worker = self._machines[f"worker{number}"]
        aggregator.root(
            f"ip link add {port} type veth peer name eth1 netns {worker.pid} && "
            f"ip address add 10.0.{number}.1/24 dev {port} && ip link set {port} up"
        )
        worker.root(f"ip address add 10.0.{number}.10/24 dev eth1 && ip link set eth1 up")

    def _make_scp(self, path: pathlib.Path) -> None:
        cases = " ".join(f"{name}:*) pid={machine.pid};;" for name, machine in self._machines.items())
        path.write_text(SCP.format(cases=cases))
        path.chmod(0o755)

    def stop(self) -> None:
        """Ends what runs on the machines, and removes them."""
        self._stack.close()
