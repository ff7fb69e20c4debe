"""Runs jobs on a Slurm cluster of two nodes on this machine, with the prolog, epilog and job scripts of
tools/launchers/slurm.

    sbatch (user nobody) --- slurmctld --- slurmd n1: prolog, task --- daemon of n1 ---+
                                   |                                                    +--- aggregator
                                   +------ slurmd n2: prolog, task --- daemon of n2 ---+
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from .hosts import LAUNCHERS, ROOT, TEST_TIMEOUT, Hosts, programs, wait_until
from .test_torchrun import TORCHRUN, free_port, has_torch

SLURM = LAUNCHERS / "slurm"
USER = "nobody"
RULES = f'socket_mode = "0666"\n[[allow]]\nusers = ["{USER}"]\njobs = ["{{user}}:*"]\n'
AS_USER = ("setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", "--inh-caps=-all")
TRAINER = """
import signal, sys, sumac
client = sumac.Client(sys.argv[1])
job = client.open(sys.argv[2], rank=0, world=1)
signal.pause()
"""
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "jq")


class Cluster:
    """slurmctld, a slurmd for each node, and munged with a key and a socket of their own."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.path = hosts.path / "slurm"
        self.path.mkdir()
        # Where jobs of the other user write their output.
        self.output = self.path / "output"
        self.output.mkdir()
        shutil.chown(self.output, USER)
        # The working copy may be in a folder that the other user cannot enter.
        binaries = self.path / "bin"
        binaries.mkdir()
        shutil.copy(hosts.bin / "sumac", binaries)
        self.scripts = self.path / "scripts"
        shutil.copytree(SLURM, self.scripts)
        shutil.copytree(LAUNCHERS / "torchrun", self.scripts, dirs_exist_ok=True)
        shutil.copytree(ROOT / "userspace/python/sumac", self.path / "sumac")
        (self.path / "trainer.py").write_text(TRAINER)
        self._environment = {
            "SLURM_CONF": str(self.path / "slurm.conf"),
            "PATH": f"{binaries}:{os.environ['PATH']}",
        }
        self._start_munge()
        (self.path / "slurm.conf").write_text(self._configuration())
        self._start("slurmctld", "slurmctld", "-D", "-c")
        for node in hosts.NODES:
            (self.path / node).mkdir()
            self._start(f"slurmd-{node}", "slurmd", "-D", "-N", node)
        wait_until("all nodes are idle", lambda: self.states() == {node: "idle" for node in hosts.NODES})

    def _start(self, name: str, *command: str | Path) -> None:
        self.hosts.processes.start(name, *command, environment=self._environment)

    def _start_munge(self) -> None:
        folder = self.path / "munge"
        folder.mkdir(mode=0o700)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        options = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        socket = self.path / "munge.socket"
        self._start("munged", "munged", "--foreground", "--force", f"--socket={socket}", *options)
        wait_until("munged listens", socket.exists)

    def _configuration(self) -> str:
        """The example's lines with this cluster's paths and nodes, and what a cluster on one machine
        needs."""
        lines = (SLURM / "slurm.conf.example").read_text(encoding="utf-8")
        for key, script in (("Prolog", "prolog.sh"), ("Epilog", "epilog.sh"),
                            ("TaskProlog", "task-prolog.sh")):
            lines, found = re.subn(rf"^{key}=.*$", f"{key}={self._script(script)}", lines, flags=re.MULTILINE)
            assert found == 1, f"{key} in slurm.conf.example"
        # Not every container has cgroups that slurmd may write to.
        lines = lines.replace("proctrack/cgroup", "proctrack/linuxproc")
        lines = re.sub(r"^NodeName=.*$", "", lines, flags=re.MULTILINE)
        ports = {
            name: port
            for port, name in enumerate(("slurmctld", *self.hosts.NODES), 20_000 + os.getpid() * 4 % 10_000)
        }
        nodes = [
            f"NodeName={name} NodeAddr=127.0.0.1 Port={ports[name]} CPUs=1 Feature=sumac"
            for name in self.hosts.NODES
        ]
        return "\n".join(
            [
                "ClusterName=test",
                "SlurmctldHost=localhost(127.0.0.1)",
                f"SlurmctldPort={ports['slurmctld']}",
                "AuthType=auth/munge",
                f"AuthInfo=socket={self.path}/munge.socket",
                "SlurmUser=root",
                "SlurmdUser=root",
                f"SlurmctldPidFile={self.path}/slurmctld.pid",
                f"SlurmdPidFile={self.path}/%n/slurmd.pid",
                f"SlurmdSpoolDir={self.path}/%n",
                f"StateSaveLocation={self.path}/state",
                "TaskPlugin=task/none",
                "MpiDefault=none",
                "SelectType=select/linear",
                "SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
                *nodes,
                lines,
            ]
        )

    def _script(self, name: str) -> Path:
        """Returns a script that runs one of tools/launchers/slurm with this node's configuration: the nodes
        are one machine."""
        for node in self.hosts.NODES:
            (self.path / f"{node}.env").write_text(f"SUMAC_SOCKET={self.hosts.socket(node)}\nSUMAC_WAIT=1\n")
        path = self.path / f"node-{name}"
        path.write_text(
            f"#!/bin/bash\nexport PATH={self.path}/bin:$PATH SUMAC_SLURM_CONFIG={self.path}/$SLURMD_NODENAME.env\nexec {self.scripts / name}\n"
        )
        path.chmod(0o755)
        return path

    def run(self, *command: str | Path) -> str:
        """Runs one of Slurm's commands as root and returns its output."""
        everything = {**os.environ, **self._environment}
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=everything,
                              timeout=TEST_TIMEOUT)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, *arguments: str | Path) -> int:
        """Submits a job as the unprivileged user and returns its number."""
        output = self.output / "%j.txt"
        return int(self.run(*AS_USER, "sbatch", "--parsable", f"--chdir={self.output}", f"--output={output}",
                            *arguments))

    def cancel_jobs(self) -> None:
        """Ends what a failed test left: tasks outlive their slurmd."""
        self.run("scancel", f"--user={USER}")
        wait_until("no job is left", lambda: not self.run("squeue", "--noheader"))

    def job_state(self, job: int) -> str:
        """Returns a job's state, such as COMPLETED."""
        return re.findall(r"JobState=(\w+)", self.run("scontrol", "show", "job", str(job)))[0]

    def result(self, job: int) -> tuple[str, str]:
        """Waits for a job's end; returns its state and its output."""
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(f"job {job} has ended", lambda: self.job_state(job) in ends, 3 * TEST_TIMEOUT)
        output = self.output / f"{job}.txt"
        return self.job_state(job), output.read_text() if output.exists() else ""

    def states(self) -> dict[str, str]:
        """Returns the state of each node."""
        return dict(
            line.split() for line in self.run("sinfo", "--Node", "--noheader", "--format=%N %t").splitlines()
        )

    def resume(self, node: str) -> None:
        """Takes a node back that a prolog or epilog drained."""
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_until(f"{node} is idle", lambda: self.states()[node] == "idle")

    def trainer(self, node: str, job: str) -> str:
        """Returns the command of a trainer that opens a job and does not end."""
        return f"/usr/bin/python3 {self.path}/trainer.py {self.hosts.socket(node)} {job}"

    def start_trainer(self, name: str, job: str) -> str:
        """Starts a trainer of the unprivileged user on n1, outside of Slurm; returns its name."""
        self._start(name, *AS_USER, "sh", "-c", f"exec {self.trainer('n1', job)}")
        wait_until(f"{job} is open", lambda: job in self.open_jobs("n1"))
        return name

    def escaping(self, prefix: str, job: str) -> Path:
        """Returns a job script that leaves a trainer behind, out of sight of proctrack/linuxproc."""
        pid = self.output / "escaped.pid"
        opened = f"sumac stats --socket {self.hosts.socket('n1')} | grep -q {job}"
        path = self.path / "escaping.sbatch"
        path.write_text(
            f"#!/bin/bash\nsrun bash -c '(setsid {prefix} {self.trainer('n1', job)} </dev/null >/dev/null 2>&1 & echo $! > {pid})\n"
            f"until {opened}; do sleep 0.1; done'\n"
        )
        return path

    def open_jobs(self, node: str) -> list[str]:
        """Returns the names of a daemon's Sumac jobs."""
        stats = json.loads(
            self.run(self.hosts.bin / "sumac", "stats", "--json", "--socket", self.hosts.socket(node))
        )
        return [job["name"] for job in stats["jobs"]]


class Slurm(unittest.TestCase):
    hosts: Hosts
    cluster: Cluster

    @classmethod
    def setUpClass(cls) -> None:
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if missing:
            raise unittest.SkipTest(f"not installed: {', '.join(missing)}")
        if programs() is None:
            raise unittest.SkipTest("sumac and sumac-agg are not built")
        if os.geteuid() != 0:
            if os.environ.get("REQUIRE_PRIVILEGED") == "1":
                raise AssertionError("slurmd starts tasks of other users: it needs root")
            raise unittest.SkipTest("slurmd starts tasks of other users: it needs root")
        cls.hosts = Hosts(RULES)
        cls.addClassCleanup(cls.hosts.stop)
        cls.cluster = Cluster(cls.hosts)
        cls.addClassCleanup(cls.cluster.cancel_jobs)

    def slurmd_log(self, node: str) -> str:
        return self.hosts.processes.log(f"slurmd-{node}")

    def test_a_smoke_job_sums_over_both_nodes(self) -> None:
        state, output = self.cluster.result(
            self.cluster.submit("--licenses=sumac", self.cluster.scripts / "smoke.sbatch")
        )
        self.assertEqual(state, "COMPLETED", output)
        self.assertIn("rank 0 on n1: 3.0", output)
        self.assertIn("rank 1 on n2: 3.0", output)
        for node in self.hosts.NODES:
            self.assertEqual(self.cluster.open_jobs(node), [])
        self.assertEqual(self.cluster.states(), {"n1": "idle", "n2": "idle"})

    def test_a_training_job_trains_on_both_nodes(self) -> None:
        if not has_torch():
            self.skipTest("python3-torch is not installed")
        # The nodes' names are no hosts' names here.
        setup = {"RENDEZVOUS": f"127.0.0.1:{free_port()}", "TRAIN_SH": str(self.cluster.scripts / "train.sh"),
                 **TORCHRUN}
        setup |= {"PYTHON": "/usr/bin/python3", "PYTHONPATH": str(self.cluster.path),
                  "PET_LOG_DIR": str(self.cluster.output)}
        export = ",".join(["ALL", *(f"{name}={value}" for name, value in setup.items())])
        job = self.cluster.submit(
            f"--export={export}", self.cluster.scripts / "train.sbatch", self.cluster.scripts / "train.py"
        )
        state, output = self.cluster.result(job)
        self.assertEqual(state, "COMPLETED", output)
        self.assertEqual(len(re.findall(r"rank \d of 2 on \S+: loss", output)), 2, output)
        self.assertEqual([self.cluster.open_jobs(node) for node in self.hosts.NODES], [[], []])

    def test_a_prolog_without_a_daemon_drains_the_node_and_says_why(self) -> None:
        self.hosts.processes.end("n2")
        try:
            job = self.cluster.submit("--constraint=sumac", "--nodelist=n2", "--wrap=true")
            wait_until("n2 is drained", lambda: self.cluster.states()["n2"].startswith("drain"))
            reason = f"sumac: no daemon answers at {self.hosts.socket('n2')}"
            wait_until("slurmd's log has the reason", lambda: reason in self.slurmd_log("n2"))
            # Other jobs do not mind.
            self.cluster.run("scancel", str(job))
            self.cluster.resume("n2")
            state, output = self.cluster.result(
                self.cluster.submit("--nodelist=n2", "--wrap=echo without Sumac")
            )
            self.assertEqual((state, output), ("COMPLETED", "without Sumac\n"))
        finally:
            self.hosts.start_daemon("n2")

    def test_a_task_has_the_daemons_socket_and_a_name_of_its_step(self) -> None:
        wrap = "--wrap=srun -N2 -n2 bash -c 'echo $SUMAC_SOCKET $SUMAC_JOB'"
        job = self.cluster.submit("--nodes=2", "--constraint=sumac", wrap)
        state, output = self.cluster.result(job)
        self.assertEqual(state, "COMPLETED", output)
        self.assertEqual(
            sorted(output.split("\n")[:2]),
            [f"{self.hosts.socket(node)} {USER}:{job}.0" for node in self.hosts.NODES],
        )

    def test_the_task_prolog_names_a_socket_that_the_user_may_not_open(self) -> None:
        self.hosts.socket("n1").chmod(0o660)
        try:
            _, output = self.cluster.result(self.cluster.submit("--nodelist=n1", "--wrap=srun true"))
        finally:
            self.hosts.socket("n1").chmod(0o666)
        self.assertIn(f"sumac: user {USER} may not connect to {self.hosts.socket('n1')}", output)

    def test_a_user_opens_no_job_of_another_name(self) -> None:
        renamed = self.cluster.path / "renamed.sbatch"
        renamed.write_text(
            (SLURM / "smoke.sbatch").read_text().replace('"$SUMAC_JOB"', '"root:$SLURM_JOB_ID.0"')
        )
        state, output = self.cluster.result(self.cluster.submit(renamed))
        self.assertEqual(state, "FAILED", output)
        self.assertIn("user nobody may not open job", output)

    def test_the_epilog_ends_a_trainer_that_escaped_and_no_other(self) -> None:
        other = self.cluster.start_trainer("other", f"{USER}:other.0")
        escaped = self.cluster.escaping("env", "$SUMAC_JOB")
        job = self.cluster.submit("--nodelist=n1", "--constraint=sumac", escaped)
        self.assertEqual(self.cluster.result(job)[0], "COMPLETED")
        # A job is COMPLETING until its epilog has ended.
        self.assertEqual(self.cluster.open_jobs("n1"), [f"{USER}:other.0"])
        self.assertFalse(self.hosts.processes.has_ended(other))
        self.assertEqual(self.cluster.states()["n1"], "idle")
        self.hosts.processes.end(other)

    def test_an_epilog_that_cannot_tell_whose_trainer_it_is_drains_the_node(self) -> None:
        escaped = self.cluster.escaping("env -u SLURM_JOB_ID", "$SUMAC_JOB")
        job = self.cluster.submit("--nodelist=n1", "--constraint=sumac", escaped)
        wait_until("n1 is drained", lambda: self.cluster.states()["n1"].startswith("drain"))
        self.assertIn(f"sumac: still open: {USER}:{job}.0", self.slurmd_log("n1"))
        self.assertEqual(self.cluster.open_jobs("n1"), [f"{USER}:{job}.0"])
        os.kill(int((self.cluster.output / "escaped.pid").read_text()), signal.SIGKILL)
        self.cluster.resume("n1")

    def test_a_prolog_refuses_a_job_whose_earlier_run_is_not_over(self) -> None:
        job = self.cluster.submit("--hold", "--nodelist=n1", "--constraint=sumac", "--wrap=true")
        earlier = self.cluster.start_trainer("earlier", f"{USER}:{job}.0")
        self.cluster.run("scontrol", "release", str(job))
        wait_until("n1 is drained", lambda: self.cluster.states()["n1"].startswith("drain"))
        reason = f"an earlier run of this job has left {USER}:{job}.0 open"
        wait_until("slurmd's log has the reason", lambda: reason in self.slurmd_log("n1"))
        self.hosts.processes.end(earlier)
        self.cluster.run("scancel", str(job))
        self.cluster.resume("n1")


class Scripts(unittest.TestCase):
    def test_shellcheck_finds_nothing(self) -> None:
        scripts = [path for path in sorted(LAUNCHERS.rglob("*")) if path.suffix in (".sh", ".sbatch")]
        self.assertGreaterEqual(len(scripts), 6)
        if shutil.which("shellcheck") is None:
            self.skipTest("shellcheck is not installed")
        done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
