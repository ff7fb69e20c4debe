"""Runs the manifests' containers: the privileges that they name are enough, and a trainer needs none.

    worker: eth1 10.0.0.2 (DaemonSet: attach, daemon; Job: trainer) --- veth --- eth1 10.0.0.1 (Deployment:
    attach, serve) :aggregator
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy

from .containers import Container
from .hosts import TEST_TIMEOUT, Processes, programs, wait_until
from .test_kubernetes import MANIFESTS, SCHEMAS, inside

LOAD = "import json, sys, yaml; print(json.dumps([d for f in sys.argv[1:] for d in yaml.safe_load_all(open(f))]))"


def run(*command: str | Path) -> None:
    """Runs a command of the network's set-up."""
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, timeout=TEST_TIMEOUT)


class Pods(unittest.TestCase):
    def setUp(self) -> None:
        binaries = programs()
        if binaries is None:
            self.skipTest("sumac and sumac-agg are not built")
        if not SCHEMAS.exists():
            self.skipTest("tools/setup.sh could not install what reads YAML (PyPI)")
        if os.geteuid() != 0:
            if os.environ.get("REQUIRE_PRIVILEGED") == "1":
                self.fail("containers take root")
            self.skipTest("containers take root")
        folder = tempfile.TemporaryDirectory(prefix="sumac-pods-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)
        self.path.chmod(0o755)
        # The image's programs: the working copy may be in a folder that other users cannot enter.
        self.bin = self.path / "bin"
        self.bin.mkdir()
        for name in ("sumac", "sumac-agg"):
            shutil.copy(binaries / name, self.bin)
        self.documents = json.loads(inside(LOAD, *map(str, sorted(MANIFESTS.glob("*/*.yaml")))))
        self.names = {role: f"sumac-{role}-{os.getpid()}" for role in ("worker", "aggregator")}
        self.make_network()
        self.volumes = self.make_volumes()
        self.processes = Processes(self.path)
        self.addCleanup(self.processes.stop)

    def make_network(self) -> None:
        for name in self.names.values():
            run("ip", "netns", "add", name)
            self.addCleanup(run, "ip", "netns", "del", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        worker, aggregator = self.names["worker"], self.names["aggregator"]
        run("ip", "link", "add", "eth1", "netns", worker, "type", "veth", "peer", "name", "eth1", "netns",
            aggregator)
        for name, address in ((worker, "10.0.0.2/24"), (aggregator, "10.0.0.1/24")):
            run("ip", "-n", name, "addr", "add", address, "dev", "eth1")
            run("ip", "-n", name, "link", "set", "eth1", "up")

    def make_volumes(self) -> dict[str, dict[str, Path]]:
        """Returns for both pods what stands for their volumes."""
        volumes: dict[str, dict[str, Path]] = {}
        for role in self.names:
            places = {
                name: self.path / role / name
                for name in ("bpf", "sockets", "configuration", "token", "state", "scratch")
            }
            for place in places.values():
                place.mkdir(parents=True)
            run("mount", "-t", "bpf", "bpf", places["bpf"])
            self.addCleanup(run, "umount", places["bpf"])
            volumes[role] = places
        configuration = self.document("ConfigMap", "sumac")["data"]["daemon.toml"]
        (volumes["worker"]["configuration"] / "daemon.toml").write_text(configuration)
        (volumes["worker"]["configuration"] / "secret").mkdir()
        volumes["worker"]["scratch"].chmod(0o777)
        return volumes

    def document(self, kind: str, name: str) -> dict[str, Any]:
        found = [one for one in self.documents if one["kind"] == kind and one["metadata"]["name"] == name]
        self.assertEqual(len(found), 1, f"{kind} {name}")
        return found[0]

    def container(self, kind: str, name: str, container: str, role: str) -> Container:
        pod = self.document(kind, name)["spec"]["template"]["spec"]
        data = self.document("ConfigMap", "sumac")["data"]
        for one in pod.get("initContainers", []) + pod["containers"]:
            for variable in one.get("env", []):
                if "valueFrom" in variable:
                    variable["value"] = data[variable.pop("valueFrom")["configMapKeyRef"]["key"]]
        return Container(pod, container, self.volumes[role], self.names[role], self.bin)

    def root(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.path))

    def run_in(
        self, container: Container, command: list[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        whole = container.command(self.root(), command)
        return subprocess.run(
            whole, capture_output=True, text=True, timeout=TEST_TIMEOUT, env=self.environment(container)
        )

    def environment(self, container: Container) -> dict[str, str]:
        spec = next(
            c
            for c in container.pod.get("initContainers", []) + container.pod["containers"]
            if c["name"] == container.name
        )
        return {
            "PATH": os.environ["PATH"],
            **{variable["name"]: variable["value"] for variable in spec.get("env", [])},
        }

    def completes(self, container: Container) -> None:
        done = self.run_in(container)
        self.assertEqual(done.returncode, 0, done.stderr)

    def start(self, container: Container) -> None:
        """Starts a container and waits for its startup probe."""
        # unshare ignores SIGTERM; when it is killed, its child gets one.
        environment = self.environment(container)
        self.processes.start(
            container.name, *container.command(self.root()), environment=environment, ends_by=signal.SIGKILL
        )

        def answers() -> bool:
            self.assertFalse(self.processes.has_ended(container.name), self.processes.log(container.name))
            return self.run_in(container, container.probe("startupProbe")).returncode == 0

        wait_until(f"{container.name} answers", answers)

    def metrics(self, role: str, port: int) -> str:
        command = ["nsenter", f"--net=/run/netns/{self.names[role]}", "/usr/bin/python3", "-c", FETCH,
                   str(port)]
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=TEST_TIMEOUT
        ).stdout

    def test_a_trainer_sums_through_the_pods_with_the_manifests_privileges(self) -> None:
        self.completes(self.container("Deployment", "sumac-agg", "attach", "aggregator"))
        serve = self.container("Deployment", "sumac-agg", "serve", "aggregator")
        self.start(serve)
        token = self.run_in(serve, ["/usr/bin/sumac-agg", "token", "--state-dir", "/var/lib/sumac-agg"])
        self.assertEqual(token.returncode, 0, token.stderr)
        self.write_secret(token.stdout)

        self.completes(self.container("DaemonSet", "sumac", "attach", "worker"))
        daemon = self.container("DaemonSet", "sumac", "daemon", "worker")
        self.start(daemon)
        status = json.loads(self.run_in(daemon, ["/usr/bin/sumac", "stats", "--json"]).stdout)
        self.assertEqual(status["backend"], "xdp")
        self.assertTrue(status["sandbox"]["no_new_privs"] and status["sandbox"]["seccomp"])
        self.assertIn("sumac_daemon_info", self.metrics("worker", 9402))
        self.assertIn("sumac_aggregator_attached", self.metrics("aggregator", 9403))

        trainer = self.container("Job", "resnet", "trainer", "worker")
        array = self.volumes["worker"]["scratch"] / "in.npy"
        numpy.save(array, numpy.arange(1000, dtype="float32"))
        array.chmod(0o644)
        sums = ["/usr/bin/sumac", "allreduce", "--rank", "0", "--world", "1", "/tmp/in.npy", "/tmp/out.npy",
                "--job", "training-resnet"]
        done = self.run_in(trainer, sums)
        self.assertEqual(done.returncode, 0, done.stderr)
        total = numpy.load(self.volumes["worker"]["scratch"] / "out.npy")
        numpy.testing.assert_allclose(total, numpy.arange(1000), atol=1e-3)
        self.refuses_others(trainer, sums)

    def refuses_others(self, trainer: Container, sums: list[str]) -> None:
        """Neither without the socket's group nor as a user without a rule a trainer gets in."""
        sums = [word.replace("/tmp/out", "/tmp/refused") for word in sums]
        context = trainer.pod["securityContext"]
        context["runAsUser"] += 1
        self.assertIn("may not open job", self.run_in(trainer, sums).stderr)
        context["supplementalGroups"] = []
        self.assertIn("may not connect", self.run_in(trainer, sums).stderr)

    def write_secret(self, token: str) -> None:
        """Writes a Secret's volume as the kubelet does: through a link, with the mode of the manifest."""
        mode = next(
            v["secret"]["defaultMode"]
            for v in self.document("DaemonSet", "sumac")["spec"]["template"]["spec"]["volumes"]
            if "secret" in v
        )
        folder = self.volumes["worker"]["token"]
        (folder / "..2026").mkdir()
        (folder / "..data").symlink_to("..2026")
        (folder / "token").symlink_to("..data/token")
        path = folder / "..2026/token"
        path.touch(mode=0o600)
        path.write_text(token)
        path.chmod(mode)


FETCH = "import sys, urllib.request as r; print(r.urlopen(f'http://127.0.0.1:{sys.argv[1]}/metrics').read().decode())"

if __name__ == "__main__":
    unittest.main()
