# SPDX-License-Identifier: Apache-2.0
"""The picker's port itself: TLS, health, and what becomes of nonsense."""
import hashlib
import json
import signal
import subprocess

import grpc
import pytest

import tls_parts
from clients import h2_over_tls
from conftest import SLOW, Envoy, Mock, Picker, call, cluster, configuration, refused_port, wait_for

NAMES = ("readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


def certificate(picker):
    return h2_over_tls(picker.grpc, ["h2"])[1]


def test_the_certificate_is_made_at_the_start_and_speaks_h2_alone(start):
    picker = start(Picker, [start(Mock)], tls="auto")
    agreed, made = h2_over_tls(picker.grpc, ["h2", "http/1.1"])
    assert agreed == "h2"
    text = subprocess.run(["openssl", "x509", "-inform", "DER", "-noout", "-text"], input=made, capture_output=True, check=True).stdout.decode()
    assert "prime256v1" in text
    for other in (["http/1.1"], []):
        with pytest.raises(OSError):
            h2_over_tls(picker.grpc, other)


@pytest.mark.parametrize("mode", ["duplex", "buffered"])
def test_files_of_a_certificate_are_read_again_when_they_change(start, tmp_path, mode):
    """While Envoy, which checks it, has connections."""
    authority = tls_parts.Authority(tmp_path, "ca")
    first, second = authority.sign("first"), authority.sign("second")
    files = (tmp_path / "picker.pem", tmp_path / "picker.key")
    tls_parts.put(first, files)
    m = start(Mock)
    picker = start(Picker, [m], "--watch-files", 0.2, "--ext-proc-tls-cert", files[0], "--ext-proc-tls-key", files[1], tls="auto")

    def checked(conf):
        for c in conf["static_resources"]["clusters"]:
            if c["name"] == "kvroute":
                c["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "common_tls_context": {"alpn_protocols": ["h2"], "validation_context": {"trusted_ca": {"filename": str(authority.file)}}}}}
    envoy = start(Envoy, mode, [picker], [m], [checked])
    assert envoy.complete([1] * 20).status == 200
    had = certificate(picker)
    tls_parts.put(second, files)
    wait_for("read again", lambda: certificate(picker) != had, 15)
    assert [envoy.complete([i] * 20).status for i in range(4)] == [200] * 4
    assert hashlib.sha256(had).digest() != hashlib.sha256(certificate(picker)).digest()


def test_envoy_over_tls_gets_what_it_gets_without(start):
    m = start(Mock)
    for mode in ("duplex", "buffered"):
        for tls in ("auto", "off"):
            picker = start(Picker, [m], tls=tls)

            def as_in_duplex(conf):
                cluster(conf, "kvroute")["transport_socket"] = cluster(configuration("duplex"), "kvroute")["transport_socket"]
            envoy = start(Envoy, mode, [picker], [m], [as_in_duplex])
            r = envoy.complete([5] * 64, stream=True, max_tokens=20)
            assert r.status == 200 and r.body.endswith(b"data: [DONE]\n\n") and r.headers["x-kvroute-worker"] == "1"


class Health:
    """grpcio as the client of a health service."""

    def __init__(self, port):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def check(self, name):
        ask = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        return ask(b"\x0a" + bytes([len(name)]) + name.encode() if name else b"", timeout=10 * SLOW)

    def watch(self, name):
        """What is told, one after the other."""
        return self.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a" + bytes([len(name)]) + name.encode(), timeout=60 * SLOW)


@pytest.mark.parametrize("where", ["grpc", "health"])
def test_health_has_a_name_for_each_question(start, where):
    m = start(Mock)
    picker = start(Picker, [m])
    h = Health(getattr(picker, where))
    for name in ("", "liveness", *NAMES):
        assert h.check(name) == SERVING, name
    with pytest.raises(grpc.RpcError) as e:
        h.check("something else")
    assert e.value.code() == grpc.StatusCode.NOT_FOUND
    m.kill()
    for name in NAMES:
        wait_for(f"{name} is not ready", lambda: h.check(name) == NOT_SERVING)
    assert h.check("") == h.check("liveness") == SERVING


@pytest.mark.parametrize("where", ["grpc", "health"])
def test_a_watch_is_told_when_the_picker_drains(start, where):
    m = start(Mock, speedup=0.5)
    picker = start(Picker, [m], env={"KVROUTE_LAME_DUCK_TIME": "1"})
    told = Health(getattr(picker, where)).watch(NAMES[2])
    assert next(told) == SERVING
    picker.p.send_signal(signal.SIGTERM)
    assert next(told) == NOT_SERVING
    told.cancel()


def test_envoys_health_check_turns_the_picker_away_and_takes_it_again(start, mode):
    m = start(Mock)
    picker = start(Picker, [m])
    envoy = start(Envoy, mode, [picker], [m])
    m.kill()
    wait_for("turned away", lambda: envoy.healthy() == 0, 20)
    again = start(Mock, port=m.port, events=m.events, replay=m.replay)
    wait_for("taken again", lambda: envoy.healthy() == 1, 20)
    wait_for("asked again", lambda: "x-kvroute-worker" in envoy.complete([1] * 20).headers)
    assert again.p.poll() is None


PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


@pytest.mark.parametrize("message", [b"\xff" * 20, b"\x12\xff\xff\xff\x7f", b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x12\x05\x0a\x09abc"])
def test_a_broken_message_ends_its_stream_and_no_other(start, message):
    picker = start(Picker, [start(Mock)])
    channel = grpc.insecure_channel(f"127.0.0.1:{picker.grpc}")
    with pytest.raises(grpc.RpcError) as e:
        list(channel.stream_stream(PROCESS)(iter([message]), timeout=20 * SLOW))
    assert e.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT), e.value
    with pytest.raises(grpc.RpcError) as e:
        channel.unary_unary("/some.other.Service/Method")(b"", timeout=20 * SLOW)
    assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert Health(picker.grpc).check("") == SERVING and picker.booked() == 0


def test_unknown_fields_are_skipped_and_messages_out_of_order_do_no_harm(start):
    """Field 99 in front of heads; a body behind its end; an answer's body before its head."""
    picker = start(Picker, [start(Mock)])
    channel = grpc.insecure_channel(f"127.0.0.1:{picker.grpc}")

    def field(n, data):
        tag = bytes([n << 3 | 2]) if n < 16 else bytes([(n << 3 | 2) & 127 | 128, n >> 4])
        size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
        return tag + size + data

    def head(*lines):
        return field(1, b"".join(field(1, field(1, k) + field(3, v)) for k, v in lines))
    first = field(99, b"later") + field(2, head((b":path", b"/v1/completions"), (b":method", b"POST"), (b"content-type", b"application/json"))) + field(11, b"\x08\x04\x10\x04")
    body = field(4, field(1, json.dumps({"prompt": [1] * 20}).encode()) + b"\x10\x01")
    for messages in ([first, body, body], [first, field(5, field(1, b"data: x\n\n"))], [body], [first, first], [field(99, b"x")]):
        try:
            list(channel.stream_stream(PROCESS)(iter(messages), timeout=20 * SLOW))
        except grpc.RpcError as e:
            assert e.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED), (messages, e)
        wait_for("idle", picker.idle)
    assert call(picker.admin, "GET", "/ready").status == 200


def test_a_port_that_is_taken_is_told(start):
    port, held = refused_port()
    held.listen()
    p = start(Picker, [start(Mock)], ports=(port, *(refused_port()[0] for _ in range(3))), wait=False, expect=1)
    p.p.wait(20 * SLOW)
    assert "ext-proc-port" in p.text() or str(port) in p.text()
    held.close()
