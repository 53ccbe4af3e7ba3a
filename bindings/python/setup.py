# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: `make wheel` at the project's root does it with the right library.

The compiled module needs cffi's backend at run time. So that the wheel installs and works without a network, the backend of the
Python that builds it is put inside and used when there is no other; with another version of Python, cffi is asked for."""
import os
import shutil
import sys

import _cffi_backend
from setuptools import setup
from setuptools.command.build_py import build_py

BACKEND = os.path.basename(_cffi_backend.__file__)


class WithBackend(build_py):
    def run(self):
        super().run()
        to = os.path.join(self.build_lib, "kvroute", "_backend")
        os.makedirs(to, exist_ok=True)
        shutil.copy(_cffi_backend.__file__, os.path.join(to, BACKEND))


setup(
    name="kvroute",
    version=os.environ.get("KVROUTE_VERSION", "0.1.0"),
    description="KV-cache-aware routing for LLM inference: index, local index of an engine, selection",
    long_description=open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "README.md")).read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=["kvroute"],
    package_data={"kvroute": ["py.typed", "*.pyi"]},
    cffi_modules=["build_kvroute.py:ffi"],
    cmdclass={"build_py": WithBackend},
    python_requires=">=3.9",
    install_requires=[f'cffi>=1.15; python_version != "{sys.version_info[0]}.{sys.version_info[1]}"'],
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
    zip_safe=False,
)
