# SPDX-License-Identifier: Apache-2.0
"""A gateway's end of external processing, by another gRPC and another protobuf than the program's: what Envoy says, message by message."""
import importlib.util
import os
import queue
import subprocess
import sys
import tempfile

import grpc
from conftest import BINARY, SLOW, Process, Serve, call, free_ports

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX = range(5)
DESTINATION = "x-gateway-destination-endpoint"


def _messages():
    with tempfile.TemporaryDirectory() as where:
        subprocess.run(["protoc", f"--python_out={where}", f"-I{ROOT}/src/wire", "ext_proc.proto"], check=True)
        spec = importlib.util.spec_from_file_location("ext_proc_pb2", os.path.join(where, "ext_proc_pb2.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules["ext_proc_pb2"] = module
        spec.loader.exec_module(module)
        return module


pb = _messages()


def built():
    """Has the program a picker?"""
    return "ext-proc-port" not in subprocess.run([BINARY, "serve", "--check", "--ext-proc-port", "1"], capture_output=True, text=True, check=False).stderr


class Picker(Process):
    """kvroute epp; plain, unless tls says otherwise."""
    get, post, metric, views, view, idle, overlap = (Serve.__dict__[k] for k in ("get", "post", "metric", "views", "view", "idle", "overlap"))

    def __init__(self, workers, *extra, tls="off", ready=True, **kw):
        self.grpc, self.health, self.admin = free_ports(), free_ports(), free_ports()
        args = ["epp", "--host", "127.0.0.1", "--ext-proc-port", self.grpc, "--ext-proc-tls", tls, "--ext-proc-health-port", self.health,
                "--admin-port", self.admin, "--health-interval", 0.3, "--health-timeout", 10]
        for w in workers:
            args += ["--worker", w if isinstance(w, str) else w.spec()]
        super().__init__(*args, *extra, **kw)
        self.up("picker", lambda: call(self.admin, "GET", "/health").status == 200)
        if ready:
            self.up("ready", lambda: call(self.admin, "GET", "/ready").status == 200, 20)

    def booked(self):
        return sum(load["active_requests"] for load in self.get("/loads"))


def header_map(headers):
    return pb.HeaderMap(headers=[pb.Header(key=k.encode(), raw_value=v.encode()) for k, v in headers.items()])


class Talk:
    """A stream: one request of a client of the gateway."""

    def __init__(self, channel, metadata=()):
        self.said, self.channel = queue.Queue(), channel
        self.call = channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process", request_serializer=pb.ProcessingRequest.SerializeToString,
                                          response_deserializer=pb.ProcessingResponse.FromString)(iter(self.said.get, None), timeout=60 * SLOW, metadata=metadata, wait_for_ready=True)

    def say(self, **parts):
        self.said.put(pb.ProcessingRequest(**parts))

    def head(self, path="/v1/completions", method="POST", end=False, modes=(BUFFERED, STREAMED), subset=None, **headers):
        parts = {}
        if subset is not None:
            items = pb.List(values=[pb.Item(string_value=s.encode()) for s in subset])
            field = pb.Field(key=b"x-gateway-destination-endpoint-subset", value=pb.Value(list_value=items))
            parts["metadata_context"] = pb.Metadata(filter_metadata=[pb.Namespace(key=b"envoy.lb.subset_hint", value=pb.Struct(fields=[field]))])
        self.say(request_headers=pb.Headers(headers=header_map({":method": method, ":path": path, ":authority": "x", **{k.replace("_", "-"): v for k, v in headers.items()}}),
                                            end_of_stream=end),
                 protocol_config=pb.Modes(request_body_mode=modes[0], response_body_mode=modes[1]), **parts)

    def body(self, data, end=True):
        self.say(request_body=pb.Body(body=data, end_of_stream=end))

    def response(self, status=200, end=False, address=None, **headers):
        parts = {}
        if address:
            field = pb.Field(key=b"upstream.address", value=pb.Value(string_value=address.encode()))
            parts["attributes"] = [pb.Namespace(key=b"envoy.filters.http.ext_proc", value=pb.Struct(fields=[field]))]
        self.say(response_headers=pb.Headers(headers=header_map({":status": str(status), **{k.replace("_", "-"): v for k, v in headers.items()}}), end_of_stream=end), **parts)

    def response_body(self, data, end=False):
        self.say(response_body=pb.Body(body=data, end_of_stream=end))

    def heard(self):
        return next(self.call)

    def decision(self):
        """The headers of the next answer, be it to the headers or to the body."""
        answer = self.heard()
        return set_by(getattr(answer, answer.WhichOneof("response")))

    def close(self):
        self.said.put(None)

    def cancel(self):
        """Once its HEADERS have left, as the answer to a call behind it shows: the library resets a call whose HEADERS still wait, and a RST_STREAM
        of a stream that never began ends the connection, with all of its calls (RFC 9113, 6.4)."""
        behind = self.channel.unary_unary("/nobody/listens").future(b"", timeout=60 * SLOW)
        assert behind.code() == grpc.StatusCode.UNIMPLEMENTED
        self.call.cancel()


class Observing(Talk):
    """A stream of a filter in observability_mode: nobody waits for answers."""

    def __init__(self, channel, name=None, **kw):
        super().__init__(channel, **kw)
        self.say(request_headers=pb.Headers(headers=header_map({":method": "POST", ":path": "/v1/completions", **({"x-request-id": name} if name is not None else {})})))

    def say(self, **parts):
        super().say(observability_mode=True, **parts)


def set_by(answer):
    return {h.header.key.decode(): h.header.raw_value.decode() for h in answer.response.header_mutation.set_headers}


def channel_to(port, **options):
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1), *options.items()])
