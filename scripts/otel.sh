#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Outsiders who judge the spans of `kvroute serve`, for tests/e2e/test_traces_outsiders.py alone: an OpenTelemetry Collector, built with Go from
# its own modules, and the classes of OpenTelemetry's protobuf files for Python. Both go to build/outsiders, which is printed; a few minutes of
# a core, and 200 MB of downloads that are not kept. --check: only says whether they are here.
set -eu
cd "$(dirname "$0")/.."
here=$PWD/build/outsiders collector=v0.165.0 proto=1.45.2
if [ -x "$here/otelcol" ] && [ -x "$here/python/bin/python" ]; then echo "$here"; exit 0; fi
[ "${1:-}" = --check ] && exit 1
go=$(command -v go || echo /usr/local/go/bin/go)
[ -x "$go" ] || { echo "the Collector needs Go 1.26 or later" >&2; exit 1; }
mkdir -p "$here"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir "$work/src"
cp tests/outsiders/collector.go "$work/src/main.go"
build() {
  cd "$work/src" && export GOPATH="$work/go" GOCACHE="$work/cache" GOFLAGS=-modcacherw
  "$go" mod init kvroute.test/collector &&
    "$go" get "go.opentelemetry.io/collector/otelcol@$collector" "go.opentelemetry.io/collector/receiver/otlpreceiver@$collector" \
      "go.opentelemetry.io/collector/exporter/debugexporter@$collector" &&
    "$go" mod tidy && "$go" build -p 2 -trimpath -ldflags "-s -w" -o "$here/otelcol" .
}
(build) >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
python3 -m venv "$here/python" && "$here/python/bin/pip" install -q "opentelemetry-proto==$proto" >&2
echo "$here"
