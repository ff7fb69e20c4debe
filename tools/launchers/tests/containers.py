"""Runs a container of a manifest with util-linux: its capabilities, user, mounts and read-only root, and
nothing of an image.

The root has this machine's /usr. Not applied are the runtime's own seccomp profile, AppArmor and SELinux, and
limits of resources.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

# Arguments: the new root, then for each volume source, place and `ro` or `rw`, then `--` and the command.
SCRIPT = r"""
set -eu
root=$1; shift
mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
for folder in bin sbin lib lib64 usr; do
    if [ -L "/$folder" ]; then cp -a "/$folder" "$root/"; else mkdir "$root/$folder"; mount --rbind "/$folder" "$root/$folder"; fi
done
mkdir "$root/proc" "$root/sys" "$root/dev" "$root/etc"
cp /etc/passwd /etc/group "$root/etc/"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
    shift 3
done
shift
mount -o remount,ro "$root"
exec chroot "$root" "$@"
"""


@dataclasses.dataclass
class Container:
    """A container of a pod, and what stands for the volumes of the pod by their names."""

    pod: dict[str, Any]
    name: str
    volumes: dict[str, Path]
    namespace: str
    """The network namespace, as `ip netns` names it."""
    bin: Path
    """Sumac's programs, in place of the image's."""

    def _spec(self) -> dict[str, Any]:
        both = self.pod.get("initContainers", []) + self.pod["containers"]
        return next(container for container in both if container["name"] == self.name)

    def _user(self) -> list[str]:
        context = {**self.pod["securityContext"], **self._spec()["securityContext"]}
        groups = ",".join(map(str, context.get("supplementalGroups", []))) or None
        return [
            f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}",
            f"--groups={groups}" if groups else "--clear-groups",
        ]

    def _privileges(self) -> list[str]:
        context = self._spec()["securityContext"]
        assert context["capabilities"]["drop"] == ["ALL"] and context["readOnlyRootFilesystem"]
        added = "".join(f",+{name.lower()}" for name in context["capabilities"].get("add", []))
        no_new = [] if context["allowPrivilegeEscalation"] else ["--no-new-privs"]
        return [*no_new, "--inh-caps=-all", f"--bounding-set=-all{added}"]

    def command(self, root: Path, command: list[str] | None = None) -> list[str]:
        """Returns what runs the container's command, or another one in its place, at ``root``, an empty
        folder."""
        mounts = [str(self.bin), "/opt/sumac", "ro"]
        for mount in self._spec()["volumeMounts"]:
            mounts += [str(self.volumes[mount["name"]]), mount["mountPath"],
                       "ro" if mount.get("readOnly") else "rw"]
        words = [self._of_image(word) for word in command or self._spec()["command"]]
        isolated = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--pid", "--fork",
                    "--kill-child=TERM"]
        return [*isolated, "sh", "-c", SCRIPT, "sh", str(root), *mounts, "--", "setpriv", *self._user(),
                *self._privileges(), *words]

    def _of_image(self, word: str) -> str:
        """Returns a word of a command with the environment's values, and with the programs' path here."""
        for variable in self._spec().get("env", []):
            value = variable.get("value")
            if value is not None:
                word = word.replace(f"$({variable['name']})", value)
        return word.replace("/usr/bin/sumac", "/opt/sumac/sumac")

    def probe(self, kind: str) -> list[str]:
        """Returns the command of a probe."""
        return list(self._spec()[kind]["exec"]["command"])
