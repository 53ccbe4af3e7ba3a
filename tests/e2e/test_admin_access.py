# SPDX-License-Identifier: Apache-2.0
"""Who may use the ports that change or tell what a program holds: web pages may not, and nobody without the key where there is one."""
import http.client
import socket

import pytest

from conftest import SLOW, Indexer, Mock, Publish, Select, Serve, call, free_ports, wait_for

EVIL = "http://evil.example"


def raw(port, method, path, headers, body=b""):
    """A request with exactly these headers, Content-Length beside them. Returns the status."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30 * SLOW)
    try:
        c.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for k, v in ({"Content-Length": str(len(body))} | headers).items():
            c.putheader(k, v)
        c.endheaders(body)
        return c.getresponse().status
    finally:
        c.close()


@pytest.fixture
def ports(start):
    """Every program with such a port: (port, a route that tells, a route that changes and a body for it)."""
    m = start(Mock)
    s, sel, ix, pub = start(Serve, [m]), start(Select), start(Indexer), start(Publish, m)
    worker = b'{"worker_id":9,"endpoint":"http://127.0.0.1:1","block_size":16}'
    register = b'{"instance_id":9,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}'
    return {"serve": (s.admin, "/dump", "/workers", worker), "select": (sel.port, "/dump", "/workers", worker),
            "indexer": (ix.port, "/dump", "/register", register), "publish": (pub.port, "/dump", None, b"{}")}


def test_a_web_page_cannot_add_a_worker_or_read_what_is_held(ports):
    for name, (port, tell, change, body) in ports.items():
        own = {"Host": f"127.0.0.1:{port}"}
        if change:
            # what a page may send without asking first: a simple request
            assert raw(port, "POST", change, own | {"Content-Type": "text/plain", "Origin": EVIL}, body) == 403, name
            assert raw(port, "POST", change, own | {"Content-Type": "text/plain"}, body) == 415, name
            assert raw(port, "POST", change, own, body) == 415, name
            assert raw(port, "POST", change, own | {"Content-Type": "application/json", "Origin": EVIL}, body) == 403, name
            assert raw(port, "POST", change, own | {"Content-Type": "application/json", "Origin": "null"}, body) == 403, name
            # a name of its own that it has pointed at the port
            assert raw(port, "POST", change, {"Host": f"evil.example:{port}", "Content-Type": "application/json",
                                              "Origin": f"{EVIL}:{port}"}, body) == 403, name
        assert raw(port, "GET", tell, {"Host": f"evil.example:{port}"}) == 403, name
        assert raw(port, "GET", tell, own | {"Origin": EVIL}) == 403, name
        assert raw(port, "GET", "/metrics", {"Host": "evil.example"}) == 403, name
        assert raw(port, "GET", "/health", {"Host": "anything.example"}) == 200, name
        for host in ("127.0.0.1", f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", socket.gethostname()):
            assert raw(port, "GET", tell, {"Host": host}) == 200, (name, host)
        text = call(port, "GET", "/metrics").body.decode()
        assert 'kvroute_access_refused_total{reason="origin"}' in text and 'kvroute_access_refused_total{reason="host"} 0' not in text
    assert not any(w["worker_id"] == 9 for w in call(ports["serve"][0], "GET", "/workers").json())
    for name in ("serve", "select"):
        port, _, change, body = ports[name]
        for method, path in (("DELETE", "/workers/1"), ("PATCH", "/workers/1"), ("DELETE", "/reservations/x"), ("POST", "/debug/validate")):
            assert raw(port, method, path, {"Host": f"127.0.0.1:{port}", "Origin": EVIL}) == 403, (name, method, path)
    for name, (port, _, change, body) in ports.items():  # and who may, can
        if change:
            good = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json; charset=utf-8", "Origin": f"http://127.0.0.1:{port}"}
            assert raw(port, "POST", change, good, body) == 201, name


def test_a_page_that_was_let_in_by_name_stays_with_its_names(start):
    s = start(Serve, [], "--admin-allowed-hosts", "router.lan,.svc.example", ready=False)
    ix = start(Indexer, "--allowed-hosts", "ix.lan")
    for port, name in ((s.admin, "router.lan"), (s.admin, "a.b.svc.example"), (ix.port, "ix.lan")):
        assert raw(port, "GET", "/workers", {"Host": f"{name}:{port}"}) == 200
        assert raw(port, "GET", "/workers", {"Host": f"{name}:{port}", "Origin": f"https://{name}"}) == 200
        assert raw(port, "GET", "/workers", {"Host": f"x{name}.example:{port}"}) == 403


def test_the_admin_key_opens_everything_but_the_probes(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# operators\nsesame\n")
    for cls, args in ((Serve, [[]]), (Select, [])):
        s = start(cls, *args, "--admin-key-file", keys, **({"ready": False} if cls is Serve else {}))
        for path in ("/workers", "/dump", "/metrics", "/status", "/nowhere"):
            r = call(s.admin, "GET", path)
            assert r.status == 401 and r.headers["www-authenticate"] == "Bearer" and "key" in r.json()["error"], path
            assert call(s.admin, "GET", path, headers={"Authorization": "Bearer sesam"}).status == 401
            assert call(s.admin, "GET", path, headers={"Authorization": "Bearer sesame"}).status in (200, 404)
        body = {"worker_id": 3, "endpoint": "http://127.0.0.1:1", "block_size": 16}
        assert call(s.admin, "POST", "/workers", body).status == 401
        assert call(s.admin, "DELETE", "/workers/3").status == 401
        assert call(s.admin, "POST", "/workers", body, {"Authorization": "Bearer sesame"}).status == 201
        assert call(s.admin, "GET", "/health").status == 200 and call(s.admin, "GET", "/ready").status in (200, 503)
        assert call(s.admin, "GET", "/status/stream").status == call(s.admin, "GET", "/history").status == 401
        assert call(s.admin, "GET", "/").status == 200  # it asks for the key itself


@pytest.mark.parametrize("command,option", [("serve", "--admin-key-file"), ("select", "--api-key-file"), ("indexer", "--api-key-file")])
def test_a_key_file_that_cannot_be_used_is_a_start_up_error(start, tmp_path, command, option):
    from conftest import Process
    empty = tmp_path / "empty"
    empty.write_text("\n# nothing\n")
    for path, why in ((empty, "no key in"), ("/no/such", "No such file")):
        p = start(Process, command, option, path, "--port", free_ports(), expect=None)
        assert wait_for("exit", lambda: p.p.poll() is not None)
        assert p.p.returncode != 0 and option in p.text() and why in p.text() and "allowed" in p.text()


def test_a_port_that_others_reach_without_a_key_is_said_at_the_start(start):
    s = start(Serve, [], "--admin-host", "0.0.0.0", ready=False)
    assert "there is no key" in s.text() and "--admin-key-file" in s.text()
    assert "there is no key" not in start(Serve, [], ready=False).text()
