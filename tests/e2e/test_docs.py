# SPDX-License-Identifier: Apache-2.0
"""The documents name tests, files, sections, commands, options and routes that exist, and the site has every page."""
import glob
import html
import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata

import pytest

from conftest import BINARY, Mock, Select, Serve, call

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
SITE = "scripts/site/mkdocs.yml"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def test_every_assertion_of_the_table_has_its_test():
    names = re.findall(r"\| `(\w+)` \|$", read("tests/dynamo.md"), re.M)
    assert len(names) > 50
    sources = "".join(read(p) for p in glob.glob("tests/unit/test_*.c", root_dir=ROOT) + glob.glob("tests/e2e/test_*.py", root_dir=ROOT))
    for n in names:
        assert re.search(rf"static void {n}\(void \*\*s?\)", sources) or re.search(rf"^def {n}\(", sources, re.M), n
        if not n.startswith("test_"):
            assert re.search(rf"(cmocka_unit_test\w*|T)\({n}[,)]", sources), f"{n} is not run"


def pages():
    return sorted(os.path.relpath(p, ROOT) for p in glob.glob(f"{ROOT}/docs/**/*.md", recursive=True))


def documents():
    return pages() + ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bindings/python/README.md", "tests/dynamo.md"]


def prose(text):
    """Without code: what looks like a link or a heading there is none."""
    return re.sub(r"`[^`\n]*`", lambda m: m[0].replace("](", "] ("), re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchors(text):
    """What a heading is called by the two that show the pages: a repository's browser, and mkdocs. A link has to be right for both."""
    def of(slug):
        seen, out = {}, set()
        for heading in re.findall(r"^#{1,6} +(.*?) *#*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
            name = slug(html.unescape(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")))
            seen[name] = seen.get(name, -1) + 1
            out.add(name + (f"-{seen[name]}" if seen[name] else ""))
        return out
    browser = of(lambda s: re.sub(r"[^\w\- ]", "", s.lower()).replace(" ", "-"))
    return browser & of(lambda s: re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKD", s).encode("ascii", "ignore").decode()).strip().lower()))


@pytest.mark.parametrize("doc", documents())
def test_every_link_leads_somewhere(doc):
    text, bad = prose(read(doc)), []
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)\"", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(doc), path)) if path else doc
        if not os.path.exists(os.path.join(ROOT, target)) or (anchor and target.endswith(".md") and anchor not in anchors(read(target))):
            bad.append(link)
    assert not bad, f"{doc}: {bad}"


def test_pages_that_others_name_exist():
    bad = []
    for folder in ("src", "include", "scripts", "tests", "deploy", "bindings", "bench", "cmake"):
        for path in glob.glob(f"{ROOT}/{folder}/**/*.*", recursive=True):
            if path.endswith((".c", ".h", ".cc", ".py", ".sh", ".txt", ".yml", ".yaml", ".json", ".cmake", ".js", ".html")):
                with open(path, encoding="utf-8", errors="replace") as f:
                    bad += [(os.path.relpath(path, ROOT), d) for d in re.findall(r"\bdocs/[\w/-]+\.(?:md|json|svg)", f.read()) if not os.path.exists(os.path.join(ROOT, d))]
    assert not bad, bad


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r"^ +- (\S+\.md)$", read(SITE), re.M)
    assert sorted(f"docs/{p}" for p in listed) == pages()


def commands(doc):
    """The commands of a document's code blocks, each as its words: continued lines are one, and what follows a pipe or an & is the next."""
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```$", read(doc), re.M | re.S):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            try:
                words = list(shlex.shlex(line, posix=True, punctuation_chars="|&;")) if re.match(r"[\w./$=\"-]*(kvroute|make)\b|PROMETHEUS", line) else []
            except ValueError:  # a quote that goes on in the next line is an engine's
                continue
            while words:
                n = next((i for i, w in enumerate(words) if set(w) <= set("|&;")), len(words))
                yield words[:n]
                words = words[n + 1:]


def shown_options(command, known={}):  # pylint: disable=dangerous-default-value
    """The options that `kvroute COMMAND --help all` names, and those that have another sense with `no-`."""
    if command not in known:
        told = subprocess.run([BINARY, command, "--help", "all"], capture_output=True, text=True, timeout=60, check=False)
        names = set(re.findall(r"--(?:\[no-\])?([a-z][\w-]*)", told.stdout))
        known[command] = names | {f"no-{n}" for n in names} | {n.removeprefix("no-") for n in names} | {"help"}
    return known[command]


@pytest.mark.parametrize("doc", [d for d in documents() if d not in ("CHANGELOG.md", "tests/dynamo.md")])
def test_every_command_has_options_that_exist(doc):
    targets, bad = set(re.findall(r"^([\w-]+):", read("Makefile"), re.M)), []
    for words in commands(doc):
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        if words and words[0] == "make":
            bad += [f"make {w}" for w in words[1:] if not w.startswith("-") and "=" not in w and w not in targets]
        elif words and os.path.basename(words[0]) == "kvroute" and len(words) > 1 and words[1] not in ("COMMAND", "CMD"):
            names = {w[2:].split("=")[0] for w in words[2:] if re.match(r"--[a-z]", w)}
            bad += [f"{words[1]} --{n}" for n in sorted(names - shown_options(words[1]))]
    assert not bad, f"{doc}: {bad}"


def test_the_chart_is_drawn_from_the_tables():
    p = subprocess.run([sys.executable, "scripts/chart.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert p.returncode == 0, p.stderr


def test_the_site_is_built_without_a_warning(tmp_path):
    if not shutil.which("mkdocs"):
        pytest.skip("no mkdocs here (apt-get install mkdocs)")
    p = subprocess.run(["mkdocs", "build", "--strict", "-q", "-f", SITE, "-d", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert p.returncode == 0, p.stdout + p.stderr
    for page in glob.glob(f"{tmp_path}/site/**/*.html", recursive=True):
        with open(page, encoding="utf-8") as f:
            outside = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"((?:https?:)?//[^\"]+)", f.read())
        assert not outside, f"{page} asks another host: {outside}"


def test_documented_routes_exist(start):
    s = start(Select)
    s.worker(1)
    for route in sorted(set(re.findall(r"`(?:GET |POST )?(/[a-z_]+(?:/[a-z_]+)?)(?:\?[^`]*)?`", read("docs/guides/select.md"))) - {"/output_block", "/renew", "/deregister_peer"}):
        codes = {call(s.port, m, route, b"{}" if m == "POST" else None).status for m in ("GET", "POST")}
        assert codes != {404}, route


def test_the_page_on_the_admin_port_has_every_route_and_no_other(start, tmp_path):
    (tmp_path / "keys.yaml").write_text("anonymous: {}\n")
    s, page = start(Serve, [start(Mock)], "--api-key-file", tmp_path / "keys.yaml"), read("docs/reference/admin.md")
    table = page.split("| route | |")[1].split("\n\n")[0]
    told = {p for row in table.splitlines()[2:] for p in re.findall(r"`(?:[A-Z]+ )?(/[a-z_/]*)`", row.split("|")[1])} | {"/potential_loads"}
    for route in sorted(told - {"/status/stream"}):  # which does not end
        codes = {call(s.admin, m, route, b"{}" if m == "POST" else None).status for m in ("GET", "POST")}
        assert codes != {404}, route
    routes = re.findall(r'^    \{"(/[a-z_/]*)", ', read("src/app/serve/admin/admin.c").split("} routes[] = {")[1].split("};")[0], re.M)
    elsewhere = read("docs/guides/select.md") + read("docs/guides/fleet.md")
    assert not [r for r in routes if f"{r}`" not in page and r.rsplit("/", 1)[1] not in elsewhere], "docs/reference/admin.md lacks a route"


def test_the_page_on_headers_has_every_header():
    sources = "".join(read(p) for p in glob.glob("src/app/serve/data/**/*.[ch]", root_dir=ROOT, recursive=True))
    page = read("docs/reference/headers.md") + read("docs/guides/disaggregation.md") + read("docs/guides/quality.md")
    short = re.sub(r"`-([a-z-]+)`", r"`x-kvroute-\1`", page)
    assert not [h for h in set(re.findall(r'"(x-kvroute-[a-z-]+[a-z])', sources)) if h not in page and h not in short], "docs/reference/headers.md lacks a header"


def test_make_build_installs_no_test_packages():
    """Nor nodejs, which node-llhttp needs: of that package only the C sources are taken."""
    for target in ("build", "demo", "install"):
        ran = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True).stdout
        assert [l for l in ran.splitlines() if "deps.sh" in l] == ["scripts/deps.sh build"], ran
    text = open(os.path.join(ROOT, "scripts/deps.sh")).read()
    build = re.search(r'^build="(.*)"', text, re.M).group(1).split()
    assert not [p for p in build if re.search(r"python|nats-server|mypy|node|cmocka", p)] and not re.search(r'want=.*node-llhttp', text)
