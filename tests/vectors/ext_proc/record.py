#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Messages of Envoy's external processing as Google's protobuf writes them: messages.txt, lines of a name and bytes in hex.
record.py > messages.txt. tests/unit/test_ext_proc.c reads those that Envoy sends, and must write the others the same, byte by byte."""
import importlib
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def types():
    with tempfile.TemporaryDirectory() as at:
        subprocess.run(["protoc", f"--proto_path={HERE}", f"--python_out={at}", "envoy.proto"], check=True)
        sys.path.insert(0, at)
        try:
            return importlib.import_module("envoy_pb2")
        finally:
            sys.path.remove(at)


def messages():
    e = types()
    text = lambda s: e.Value(string_value=s)
    endpoint = "x-gateway-destination-endpoint"

    def struct(**fields):
        return e.Struct(fields={k.replace("_", "-"): v for k, v in fields.items()})

    def headers(pairs, raw=True):
        return e.HeaderMap(headers=[e.HeaderValue(key=k, raw_value=v.encode()) if raw else e.HeaderValue(key=k, value=v) for k, v in pairs])

    def changes(pairs, removed=()):
        return e.HeaderMutation(set_headers=[e.HeaderValueOption(header=e.HeaderValue(key=k, raw_value=v.encode()), append_action=2) for k, v in pairs],
                                remove_headers=removed)

    request = [(":method", "POST"), (":path", "/v1/chat/completions"), ("x-request-id", "abc"), ("x-empty", "")]
    yield "read request headers", e.ProcessingRequest(
        request_headers=e.HttpHeaders(headers=headers(request)), protocol_config=e.ProtocolConfiguration(request_body_mode=4, response_body_mode=2))
    yield "read old headers", e.ProcessingRequest(request_headers=e.HttpHeaders(headers=headers(request, raw=False), end_of_stream=True))
    subset = e.Metadata(filter_metadata={"envoy.lb.subset_hint": struct(x_gateway_destination_endpoint_subset=e.Value(
        list_value=e.ListValue(values=[text("10.0.0.1:8000"), text("[::1]:8000")])))})
    yield "read subset list", e.ProcessingRequest(request_headers=e.HttpHeaders(headers=headers(request[:1])), metadata_context=subset)
    subset = e.Metadata(filter_metadata={"envoy.lb.subset_hint": struct(x_gateway_destination_endpoint_subset=text("10.0.0.1:8000, 10.0.0.2,,"))})
    yield "read subset text", e.ProcessingRequest(request_headers=e.HttpHeaders(), metadata_context=subset)
    subset = e.Metadata(filter_metadata={"envoy.lb.subset_hint": struct(x_gateway_destination_endpoint_subset=e.Value(list_value=e.ListValue()))})
    yield "read subset empty", e.ProcessingRequest(request_headers=e.HttpHeaders(), metadata_context=subset)
    served = e.Metadata(filter_metadata={"envoy.lb": struct(x_gateway_destination_endpoint_served=text("10.0.0.2:8000"))})
    yield "read response headers", e.ProcessingRequest(
        response_headers=e.HttpHeaders(headers=headers([(":status", "200")])), metadata_context=served, observability_mode=True,
        attributes={"envoy.filters.http.ext_proc": e.Struct(fields={"upstream.address": text("10.0.0.1:8000")})})
    deep = e.Value(number_value=1)
    for _ in range(40):
        deep = e.Value(struct_value=e.Struct(fields={"a": e.Value(list_value=e.ListValue(values=[deep]))}))
    yield "read unknown members", e.ProcessingRequest(
        request_body=e.HttpBody(body=b"x"), metadata_context=e.Metadata(filter_metadata={"envoy.lb": struct(other=deep)}), later="not known")
    yield "read request body", e.ProcessingRequest(request_body=e.HttpBody(body=bytes(range(256)) * 3, end_of_stream=True))
    yield "read response body", e.ProcessingRequest(response_body=e.HttpBody(body=b"data: {}\n\n"))
    yield "read end", e.ProcessingRequest(request_body=e.HttpBody(end_of_stream=True))
    yield "read request trailers", e.ProcessingRequest(request_trailers=e.HttpTrailers(trailers=headers([("a", "b")])))
    yield "read response trailers", e.ProcessingRequest(response_trailers=e.HttpTrailers(trailers=headers([("grpc-status", "0")])))
    yield "read nothing", e.ProcessingRequest()
    decision = e.CommonResponse(header_mutation=changes([(endpoint, "10.0.0.1:8000"), ("x-kvroute-reason", "é")], ["x-prefiller-host-port"]),
                                clear_route_cache=True)
    yield "write decision", e.ProcessingResponse(
        request_headers=e.HeadersResponse(response=decision), mode_override=e.ProcessingMode(request_body_mode=2, response_body_mode=1),
        dynamic_metadata=e.Struct(fields={"envoy.lb": e.Value(struct_value=e.Struct(fields={endpoint: text("10.0.0.1:8000")}))}))
    yield "write body answer", e.ProcessingResponse(request_body=e.BodyResponse(response=decision))
    changed = e.CommonResponse(body_mutation=e.BodyMutation(body=b'{"model":"m"}'), clear_route_cache=True)
    yield "write changed body", e.ProcessingResponse(request_body=e.BodyResponse(response=changed))
    for name, part in (("request_headers", e.HeadersResponse), ("response_headers", e.HeadersResponse), ("request_body", e.BodyResponse),
                       ("response_body", e.BodyResponse)):
        yield f"write empty {name}", e.ProcessingResponse(**{name: part(response=e.CommonResponse())})
    yield "write empty request_trailers", e.ProcessingResponse(request_trailers=e.TrailersResponse())
    yield "write empty response_trailers", e.ProcessingResponse(response_trailers=e.TrailersResponse())
    yield "write trailers", e.ProcessingResponse(response_trailers=e.TrailersResponse(header_mutation=changes([("a", "b")], ["c"])))
    for name, body, end in (("piece", b"q" * 300, False), ("last piece", b"", True)):
        yield f"write {name}", e.ProcessingResponse(response_body=e.BodyResponse(response=e.CommonResponse(
            body_mutation=e.BodyMutation(streamed_response=e.StreamedBodyResponse(body=body, end_of_stream=end)))))
    yield "write immediate", e.ProcessingResponse(immediate_response=e.ImmediateResponse(
        status=e.HttpStatus(code=503), headers=changes([("content-type", "application/json"), ("retry-after", "1")]), body=b'{"error":1}',
        details="kvroute_no_worker"))
    yield "write timeout", e.ProcessingResponse(override_message_timeout=e.Duration(seconds=61, nanos=250000000))
    yield "read health", e.HealthCheckRequest(service="readiness")
    yield "write health", e.HealthCheckResponse(status=2)


def main():
    for name, m in messages():
        print(name.replace(" ", "_"), m.SerializeToString(deterministic=True).hex() or "-")


if __name__ == "__main__":
    main()
