# SPDX-License-Identifier: Apache-2.0
"""The wheel where a tree has come to lie: copied with its build folders, without .git, under an awkward name."""
import os
import shutil
import subprocess
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_the_wheel_is_built_in_a_copied_tree(tmp_path):
    tree = tmp_path / "a tree & its copy"
    shutil.copytree(ROOT, tree, ignore=lambda folder, names: {".git", "build", "__pycache__"} & set(names) if folder == ROOT else {"__pycache__"})
    for build in ("release", "library"):  # what CMake refuses in another place
        cache = os.path.join(ROOT, "build", build, "CMakeCache.txt")
        (tree / "build" / build).mkdir(parents=True)
        if os.path.exists(cache):
            shutil.copy(cache, tree / "build" / build)
        else:
            (tree / "build" / build / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\nCMAKE_CACHEFILE_DIR:INTERNAL={ROOT}/build\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("KVROUTE")}
    env["CMAKE_BUILD_TYPE"] = "Debug"  # builds faster
    p = subprocess.run(["scripts/wheel.sh", "library"], cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert p.returncode == 0, p.stdout
    wheels = list((tree / "build" / "wheel-library").glob("kvroute-*-cp39-abi3-*.whl"))
    assert len(wheels) == 1 and "kvroute/_kvroute.abi3.so" in zipfile.ZipFile(wheels[0]).namelist()
