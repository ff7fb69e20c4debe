"""Keeps what setuptools writes while it builds out of the source tree, in which pip runs it."""

import atexit
import shutil
import tempfile

from setuptools import setup

build = tempfile.mkdtemp(prefix="sumac-build-")
atexit.register(shutil.rmtree, build, ignore_errors=True)
setup(options={"build": {"build_base": build}, "egg_info": {"egg_base": build}})
