"""The shell of a user without privileges, in a folder with the programs and the Python client."""

from __future__ import annotations

import os
import pathlib
import shutil

from programs import ROOT, program
from shell import Shell

NOBODY = 65534
# A prefix of a command of root's: other tests of this machine use the same addresses.
OWN_LOOPBACK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def user_shell(folder: pathlib.Path) -> Shell:
    """Returns a shell in `folder`, of nobody if this process is root's."""
    (folder / "bin").mkdir()
    for name in ("sumac", "sumac-agg"):
        path = program(name)
        assert path is not None
        shutil.copy(path, folder / "bin" / name)
    shutil.copytree(ROOT / "userspace" / "python" / "sumac", folder / "client" / "sumac")
    command: list[str] = []
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        command = [*OWN_LOOPBACK, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}",
                   "--clear-groups"]
    # Debian's Python has numpy; one below /root is closed to other users.
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "PYTHONPATH": str(folder / "client"),
                   "HOME": str(folder)}
    return Shell(command, folder, environment)


def root_shell(folder: pathlib.Path) -> Shell:
    """Returns a shell of this process's user, with the built programs."""
    lab = program("sumac-lab")
    assert lab is not None
    return Shell([], folder, {"PATH": f"{lab.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)})
