"""Checks the manifests of tools/launchers/kubernetes against the published schemas, and against Sumac's
programs."""

from __future__ import annotations

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from .hosts import LAUNCHERS, ROOT, programs

MANIFESTS = LAUNCHERS / "kubernetes"
SCHEMAS = ROOT / "target/schemas/bin"
RELEASES = ("1.27", "1.32", "1.37")
"""The oldest with the label of a job's pods, one between, and the newest of the schemas."""

# Kinds whose schemas are not Kubernetes' own: of kustomize, Kubeflow (below), and the Prometheus Operator.
FOREIGN = {"Kustomization", "TrainJob", "PodMonitor"}


def validate(release: str, *files: Path) -> subprocess.CompletedProcess[str]:
    """Holds files against the schemas of a release; a field that a schema does not have is an error."""
    command = [SCHEMAS / "kubernetes-validate", "--strict", "--kubernetes-version", release, *files]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def inside(code: str, *arguments: str) -> str:
    """Runs Python with the schemas' packages and returns its output."""
    done = subprocess.run([SCHEMAS / "python3", "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Kubeflow's models ignore fields that they do not have, and leave them out of what they return.
TRAIN_JOB = """
import sys, yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
document = yaml.safe_load(open(sys.argv[1]))
known = TrainerV1alpha1TrainJob.from_dict(document).to_dict()
def compare(given, known, place):
    for key, value in given.items() if isinstance(given, dict) else enumerate(given):
        if isinstance(given, dict) and key not in known:
            print(f"unknown: {place}.{key}")
        elif isinstance(value, (dict, list)):
            compare(value, known[key], f"{place}.{key}")
compare(document, known, "")
"""


class Schemas(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if not (SCHEMAS / "kubernetes-validate").exists():
            raise unittest.SkipTest("tools/setup.sh could not install the schemas (PyPI)")

    def files(self) -> list[Path]:
        return sorted(MANIFESTS.rglob("*.yaml"))

    def test_every_manifest_has_the_fields_and_types_of_the_schemas(self) -> None:
        kinds = {kind for path in self.files() for kind in re.findall(r"^kind: (\w+)$", path.read_text(),
                                                                      re.MULTILINE)}
        self.assertLessEqual(FOREIGN | {"DaemonSet", "Deployment", "Job"}, kinds)
        for release in RELEASES:
            with self.subTest(release):
                done = validate(release, *self.files())
                self.assertEqual(done.returncode, 0, done.stdout)
                without = re.findall(r"Couldn't find schema for kind (\w+)", done.stdout)
                self.assertEqual(set(without), FOREIGN, done.stdout)
                passed = re.findall(r"passed for resource (\w+)/", done.stdout)
                self.assertEqual(set(passed), {kind.lower() for kind in kinds - FOREIGN})

    def test_an_error_in_a_copy_is_refused(self) -> None:
        cases = [
            ("base/daemon.yaml", "readOnlyRootFilesystem: true", "readonlyRootFilesystem: true"),
            ("base/daemon.yaml", "allowPrivilegeEscalation: false", 'allowPrivilegeEscalation: "no"'),
            ("base/aggregator.yaml", "replicas: 1", "replicas: one"),
            ("training/job.yaml", "supplementalGroups: [48600]", "supplementalGroup: [48600]"),
        ]
        with tempfile.TemporaryDirectory() as folder:
            for name, right, wrong in cases:
                with self.subTest(wrong):
                    text = (MANIFESTS / name).read_text()
                    self.assertIn(right, text)
                    copy = Path(folder) / Path(name).name
                    copy.write_text(text.replace(right, wrong))
                    self.assertNotEqual(validate(RELEASES[-1], copy).returncode, 0)

    def test_the_train_job_has_the_fields_of_kubeflows_models(self) -> None:
        path = MANIFESTS / "training/trainjob.yaml"
        self.assertEqual(inside(TRAIN_JOB, str(path)), "")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "typo.yaml"
            copy.write_text(path.read_text().replace("supplementalGroups:", "supplementalGroup:"))
            self.assertIn("securityContext.supplementalGroup\n", inside(TRAIN_JOB, str(copy)))


class Facts(unittest.TestCase):
    """The manifests' facts about Sumac."""

    def text(self, name: str) -> str:
        return (MANIFESTS / name).read_text(encoding="utf-8")

    def added(self, name: str) -> list[set[str]]:
        """Returns the capabilities that each list of a manifest adds."""
        return [
            set(re.findall(r'"(\w+)"', names))
            for names in re.findall(r"^ +add: \[(.*)\]$", self.text(name), re.MULTILINE)
        ]

    def test_the_capabilities_are_those_that_the_daemon_keeps_and_one_for_its_socket(self) -> None:
        source = (ROOT / "userspace/sandbox/src/lib.rs").read_text(encoding="utf-8")
        kept = re.search(r"pub const NETWORK: .*?\[\n(.*?)\];", source, re.DOTALL)
        assert kept is not None
        network = set(re.findall(r"Capability::CAP_(\w+)", kept[1]))
        self.assertIn("BPF", network)
        self.assertEqual(self.added("base/daemon.yaml"), [network | {"CHOWN"}])
        self.assertEqual(self.added("base/aggregator.yaml"), [network - {"NET_RAW"}])
        self.assertEqual(self.added("training/job.yaml"), [])
        for path in MANIFESTS.rglob("*.yaml"):
            self.assertNotIn("privileged: true", path.read_text(), path)

    def test_probes_ask_for_life_alone(self) -> None:
        for name, program in (("base/daemon.yaml", "sumac"), ("base/aggregator.yaml", "sumac-agg")):
            probes = re.findall(
                r"exec: &answers\n(?: +#.*\n)? +command: (.*)$", self.text(name), re.MULTILINE
            )
            self.assertEqual(probes, [f'["/usr/bin/{program}", "ping"]'], name)
            self.assertRegex(self.text(name), r"livenessProbe:\n +exec: \*answers")

    def test_the_kustomization_has_every_file_of_its_folder(self) -> None:
        listed = set(re.findall(r"^  - (\S+\.yaml)$", self.text("base/kustomization.yaml"), re.MULTILINE))
        self.assertEqual(
            listed, {path.name for path in (MANIFESTS / "base").glob("*.yaml")} - {"kustomization.yaml"}
        )

    def test_the_group_and_the_user_of_trainers_are_those_of_the_daemons_rules(self) -> None:
        rules = self.text("base/configuration.yaml")
        group, user = re.findall(r"socket_group = (\d+)", rules), re.findall(r"users = \[(\d+)\]", rules)
        for name in ("training/job.yaml", "training/trainjob.yaml"):
            self.assertEqual(re.findall(r"supplementalGroups: \[(\d+)\]", self.text(name)), group, name)
            self.assertEqual(re.findall(r"runAsUser: (\d+)", self.text(name)), user, name)

    def test_the_images_have_what_the_manifests_start(self) -> None:
        image = (LAUNCHERS / "container/Containerfile.trainer").read_text(encoding="utf-8")
        copied = {
            f"{to}{file}"
            for file, to in re.findall(r"^COPY --from=torchrun (\S+) (\S+/)$", image, re.MULTILINE)
        }
        self.assertEqual(copied, {"/usr/bin/train.sh", "/usr/share/sumac/train.py"})
        command = re.findall(r'command: \["(\S+)", "(\S+)"\]$', self.text("training/job.yaml"), re.MULTILINE)
        self.assertEqual(set(*command), copied)
        for path in copied:
            self.assertTrue((LAUNCHERS / "torchrun" / Path(path).name).exists(), path)
        self.assertEqual(
            re.findall(r"^USER (\d+):", image, re.MULTILINE),
            re.findall(r"runAsUser: (\d+)", self.text("training/job.yaml")),
        )

    def test_the_daemon_accepts_the_configuration(self) -> None:
        binaries = programs()
        if binaries is None:
            self.skipTest("sumac is not built")
        found = re.search(
            r"^  daemon\.toml: \|\n((?:    .*\n|\n)+)", self.text("base/configuration.yaml"), re.MULTILINE
        )
        assert found is not None
        configuration = re.sub(r"^    ", "", found[1], flags=re.MULTILINE)
        with tempfile.TemporaryDirectory() as folder:
            token = Path(folder) / "token"
            token.touch(mode=0o600)
            state = Path(folder) / "state"
            made = subprocess.run(
                [binaries / "sumac-agg", "token", "--state-dir", state], check=True, stdout=subprocess.PIPE
            )
            token.write_bytes(made.stdout)
            path = Path(folder) / "daemon.toml"
            for text, accepted in ((configuration, True), (configuration + "socket_groups = 1\n", False)):
                path.write_text(text.replace("/etc/sumac/secret/token", str(token)))
                path.chmod(0o600)
                command = [binaries / "sumac", "daemon", "--check", "--config", path]
                done = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual(done.returncode == 0, accepted, done.stderr)


if __name__ == "__main__":
    unittest.main()
