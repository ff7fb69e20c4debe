#!/usr/bin/python3
"""Runs the commands of docs/frameworks.md with PyTorch and the frameworks from PyPI.

  tools/docs/frameworks.py target/torch-stacks     the folder of the virtual environment, made unless it is
                                                   there (6 GB, some minutes)

Exit codes: 0 all commands ran, or PyPI is out of reach (the last line then begins with SKIP), 1 one failed.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import venv

from blocks import FOLDER
from pages import WrongOutput, run_page
from programs import ROOT, missing, program
from shell import BlockFailed, Shell
from user import OWN_LOOPBACK

PACKAGES = ("torch", "numpy", "accelerate", "transformers", "lightning", "deepspeed")
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple/")
# DeepSpeed builds an extension.
TIMEOUT = 300.0


def main(arguments: list[str]) -> int:
    """Makes the environment and runs the page; gives the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    if missing():
        print(f"frameworks.py: {missing()}", file=sys.stderr)
        return 1
    folder = pathlib.Path(arguments[0]).resolve()
    if not (folder / "complete").exists():
        reason = out_of_reach()
        if reason:
            print(f"SKIP training frameworks: {reason}")
            return 0
        make(folder)
    install = [folder / "bin/pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
    subprocess.run([*install, ROOT / "userspace" / "python"], check=True)
    subprocess.run([folder / "bin/pip", "list"], check=True)
    with tempfile.TemporaryDirectory(prefix="sumac-frameworks-") as work:
        user = shell(folder, pathlib.Path(work))
        try:
            ran = run_page(FOLDER / "frameworks.md", {"user": user})
        except (BlockFailed, WrongOutput) as error:
            print(f"frameworks.py: {error}", file=sys.stderr)
            return 1
        finally:
            user.stop()
    print(f"{ran} blocks of docs/frameworks.md ran")
    return 0


def out_of_reach() -> str:
    """Returns why the package index cannot be used; empty if it can."""
    try:
        urllib.request.urlopen(INDEX + "torch/", timeout=20).close()
    except (urllib.error.URLError, OSError) as error:
        return f"{INDEX}: {error}"
    return ""


def make(folder: pathlib.Path) -> None:
    """Makes the virtual environment with the frameworks."""
    venv.create(folder, clear=True, with_pip=True)
    install = [folder / "bin/pip", "install", "--quiet"]
    # DeepSpeed's setup imports torch.
    subprocess.run([*install, "setuptools", "wheel", "ninja", PACKAGES[0]], check=True)
    subprocess.run([*install, "--no-build-isolation", *PACKAGES], check=True)
    (folder / "complete").touch()


def shell(folder: pathlib.Path, work: pathlib.Path) -> Shell:
    """Returns a shell with the environment and the built programs, and loopback of its own where it may."""
    sumac = program("sumac")
    assert sumac is not None
    command = [*OWN_LOOPBACK] if os.geteuid() == 0 else []
    environment = {
        "PATH": f"{folder}/bin:{sumac.resolve().parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(work),
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    return Shell(command, work, environment, TIMEOUT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
