# SPDX-License-Identifier: Apache-2.0
"""The compiled part of the package: libkvroute, linked in, behind flat C functions (shim.h). cffi, API mode, stable ABI.

KVROUTE_LIB names the static library; the default is the release build's."""
import os

import cffi

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIB = os.environ.get("KVROUTE_LIB", os.path.join(ROOT, "build", "release", "libkvroute.a"))

ffi = cffi.FFI()
ffi.cdef(open(os.path.join(HERE, "cdef.h")).read())
ffi.set_source("kvroute._kvroute", '#include "shim.h"\n', include_dirs=[HERE, os.path.join(ROOT, "include")], extra_objects=[LIB],
               libraries=["m", "pthread"], extra_compile_args=["-O2", "-Wno-unused-function"], py_limited_api=True)

if __name__ == "__main__":
    ffi.emit_c_code("/dev/stdout")
