# SPDX-License-Identifier: Apache-2.0
"""Reads exports, OTLP/JSON on a line each, from standard input with OpenTelemetry's own protobuf classes, which refuse what they do not know,
and prints what they have understood: [[name, trace, id, parent, kind, begin, end, status, {attribute: value}, [event]]]."""
import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = ("traceId", "spanId", "parentSpanId")


def as_protojson(o):
    """OTLP/JSON has ids in hexadecimal digits where ProtoJSON has base64; that is all they differ in."""
    if isinstance(o, list):
        return [as_protojson(x) for x in o]
    if not isinstance(o, dict):
        return o
    return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in IDS else as_protojson(v) for k, v in o.items()}


def main():
    out = []
    for line in sys.stdin:
        request = json_format.ParseDict(as_protojson(json.loads(line)), ExportTraceServiceRequest())
        again = ExportTraceServiceRequest.FromString(request.SerializeToString())
        for s in (s for r in again.resource_spans for c in r.scope_spans for s in c.spans):
            values = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in s.attributes}
            out.append([s.name, s.trace_id.hex(), s.span_id.hex(), s.parent_span_id.hex(), s.kind, s.start_time_unix_nano, s.end_time_unix_nano, s.status.code,
                        values, [e.name for e in s.events]])
    print(json.dumps(out))


if __name__ == "__main__":
    main()
