# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI documents of the program under test, and whether an answer is one of those that they promise.

conftest.call() asks this of the first answers of each kind that any test gets."""
import json
import os
import re

import jsonschema

SOURCES = {"data": "serve/data/port", "admin": "serve/admin", "select": "serve/admin", "indexer": "indexer", "publish": "publish"}
OFTEN = 5  # so many answers of a kind are judged in a process; the others are like them, and judging takes time
SEEN = {}  # (kind of port, path of the document, method, status) -> how many
PORTS = {}  # port -> its kind
_documents = {}


class Document:
    def __init__(self, text):
        self.json = json.loads(text)
        self.paths = self.json["paths"]
        self.resolver = jsonschema.RefResolver("", self.json)
        self.patterns = [(re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(p)) + "$"), p) for p in sorted(self.paths, key=lambda p: "{" in p)]

    def at(self, value):
        """What a $ref stands for."""
        return self.resolver.resolve(value["$ref"])[1] if "$ref" in value else value

    def path_of(self, path):
        return next((p for pattern, p in self.patterns if pattern.match(path)), None)

    def methods(self, path):
        return {m: o for m, o in self.paths[path].items() if m != "parameters"}

    def schema_check(self, schema, value):
        jsonschema.Draft202012Validator(schema, resolver=self.resolver).validate(value)


def document_of(kind):
    """As the build has made it, so that a port is not asked for it in the middle of a test. None of a program that is installed."""
    if SOURCES[kind] not in _documents:
        binary = os.environ.get("KVROUTE", os.path.join(os.path.dirname(__file__), "../../build/asan/kvroute"))
        at = os.path.join(os.path.dirname(os.path.abspath(binary)), "src/app", SOURCES[kind], "openapi.json")
        _documents[SOURCES[kind]] = None
        if os.path.exists(at):
            with open(at, encoding="utf-8") as f:
                _documents[SOURCES[kind]] = Document(f.read())
    return _documents[SOURCES[kind]]


def note_ports(args):
    """A process is started: which of its ports has which document."""
    words = [str(a) for a in args]
    for option, kinds in (("--port", {"serve": "data", "select": "select", "indexer": "indexer", "publish": "publish"}), ("--admin-port", {"serve": "admin"})):
        if words[0] in kinds and option in words:
            PORTS[int(words[words.index(option) + 1])] = kinds[words[0]]
    if words[0] == "mock" and "--port" in words:
        PORTS.pop(int(words[words.index("--port") + 1]), None)  # it had another owner


def judge(port, method, path, answer):
    """Fails when the document of the port has no such answer."""
    kind = PORTS.get(port)
    doc = kind and document_of(kind)
    if not doc:
        return
    method = "get" if method == "HEAD" else method.lower()
    path = doc.path_of(path.split("?")[0])
    key = (kind, path, method, answer.status)
    SEEN[key] = SEEN.get(key, 0) + 1
    if SEEN[key] <= OFTEN:
        judge_against(doc, *key[1:], answer)


def judge_against(doc, path, method, status, answer):
    where = f"{method} {path}: {status}"
    if path is None or method not in doc.paths[path]:
        if "x-kvroute-worker" in answer.headers or (method == "options" and status == 204):  # --pass-routes; a browser's question
            return
        assert status >= 400, f"{where}: no such route is documented"
        if path and status == 405:
            assert answer.headers.get("allow"), f"{where}: 405 without Allow"
        return
    responses = doc.methods(path)[method]["responses"]
    if "default" in responses and (str(status) not in responses or "x-kvroute-worker" in answer.headers):
        return  # an engine's words
    assert str(status) in responses, f"{where}: the document does not know this status: {answer.body[:300]}"
    content = doc.at(responses[str(status)]).get("content", {})
    kind = answer.headers.get("content-type", "").split(";")[0]
    if "*/*" in content:
        return
    assert kind in (content or [""]), f"{where}: {kind or 'no'} content, documented: {list(content)}"
    if kind == "application/json" and answer.body:
        try:
            doc.schema_check(content[kind].get("schema", {}), answer.json())
        except jsonschema.ValidationError as e:
            raise AssertionError(f"{where}: not as documented, at /{'/'.join(map(str, e.absolute_path))}: {e.message[:600]}") from None
