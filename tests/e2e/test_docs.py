# SPDX-License-Identifier: Apache-2.0
"""The documents name tests, files and routes that exist."""
import glob
import os
import re
import subprocess

from conftest import Select, call

ROOT = os.path.join(os.path.dirname(__file__), "../..")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def test_every_assertion_of_the_table_has_its_test():
    table = read("docs/how/choice.md").split("## What the original's tests assert")[1]
    names = re.findall(r"\| `(\w+)` \|$", table, re.M)
    assert len(names) > 50
    sources = "".join(read(p) for p in glob.glob("tests/unit/test_*.c", root_dir=ROOT) + glob.glob("tests/e2e/test_*.py", root_dir=ROOT))
    for n in names:
        assert re.search(rf"static void {n}\(void \*\*s\)", sources) or re.search(rf"^def {n}\(", sources, re.M), n
        if not n.startswith("test_"):
            assert re.search(rf"(cmocka_unit_test\w*|T)\({n}[,)]", sources), f"{n} is not run"


def test_linked_files_exist():
    for doc in ["README.md"] + glob.glob("docs/*.md", root_dir=ROOT):
        for link in re.findall(r"\]\(([^)#]+)\)", read(doc)):
            assert "://" in link or os.path.exists(os.path.join(ROOT, os.path.dirname(doc), link)), (doc, link)


def test_documented_routes_exist(start):
    s = start(Select)
    s.worker(1)
    for route in sorted(set(re.findall(r"`(?:GET |POST )?(/[a-z_]+(?:/[a-z_]+)?)(?:\?[^`]*)?`", read("docs/guides/select.md"))) - {"/output_block", "/renew", "/deregister_peer"}):
        codes = {call(s.port, m, route, b"{}" if m == "POST" else None).status for m in ("GET", "POST")}
        assert codes != {404}, route


def test_make_build_installs_no_test_packages():
    """Nor nodejs, which node-llhttp needs: of that package only the C sources are taken."""
    for target in ("build", "demo", "install"):
        ran = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True).stdout
        assert [l for l in ran.splitlines() if "deps.sh" in l] == ["scripts/deps.sh build"], ran
    text = open(os.path.join(ROOT, "scripts/deps.sh")).read()
    build = re.search(r'^build="(.*)"', text, re.M).group(1).split()
    assert not [p for p in build if re.search(r"python|nats-server|mypy|node|cmocka", p)] and not re.search(r'want=.*node-llhttp', text)
