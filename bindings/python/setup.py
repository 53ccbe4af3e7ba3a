# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: `make wheel` at the project's root does it with the right library.

One module of the stable ABI, with libkvroute inside: it needs nothing at run time and serves every CPython from 3.9 on. What
scripts/wheel.sh has put beside it, the program and its libraries, is packed with it, and the files below share/.
KVROUTE_LIB names the static library, KVROUTE_INCLUDE the folder of its headers, KVROUTE_ROOT the project: of its sources what loads the
library of token ids is compiled in."""
import os
import re

from setuptools import Extension, setup

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.environ.get("KVROUTE_ROOT", os.path.dirname(os.path.dirname(HERE)))
LIB = os.environ.get("KVROUTE_LIB", os.path.join(ROOT, "build", "release", "libkvroute.a"))
INCLUDE = os.environ.get("KVROUTE_INCLUDE", os.path.join(ROOT, "include"))
SOURCES = ["args", "control", "hashing", "index", "local", "module", "pair", "request", "router", "ticket", "tokenizer"]
LOADER = os.path.join(ROOT, "src", "token", "library.c")

with open(os.path.join(HERE, "README.md"), encoding="utf-8") as readme:
    TEXT = readme.read()
with open(os.path.join(INCLUDE, "kvroute", "api.h"), encoding="utf-8") as header:
    VERSION = re.search('VERSION_STRING "(.+)"', header.read()).group(1)

setup(
    name="kvroute",
    version=VERSION,
    description="KV-cache-aware routing for LLM inference: index, local index of an engine, selection",
    long_description=TEXT,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=["kvroute"],
    package_data={"kvroute": ["py.typed", "*.pyi", "kvroute", "libkvr_tokenizer.so", "lib/*.so*", "lib/licences/*"]},
    data_files=[(folder, [os.path.join(folder, name) for name in names]) for folder, _, names in os.walk("share") if names],
    entry_points={"console_scripts": ["kvroute = kvroute.__main__:main"]},
    ext_modules=[Extension("kvroute._kvroute", [*(f"src/{name}.c" for name in SOURCES), LOADER], depends=["src/binding.h"],
                           include_dirs=[INCLUDE, os.path.join(ROOT, "src"), os.path.join(ROOT, "tokenizer", "include")],
                           extra_objects=[LIB], libraries=["m", "pthread", "dl"], define_macros=[("Py_LIMITED_API", "0x03090000"), ("_GNU_SOURCE", "1")],
                           extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Wno-cast-function-type",
                                               "-Werror=implicit-function-declaration", "-fvisibility=hidden"],
                           extra_link_args=["-Wl,--exclude-libs,ALL"], py_limited_api=True)],
    python_requires=">=3.9",
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
    zip_safe=False,
)
