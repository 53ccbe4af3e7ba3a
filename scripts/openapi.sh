#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Schemathesis, which makes requests of an OpenAPI document and compares the answers with it, for tests/outsiders/openapi.py alone (make
# test-openapi). It goes to build/outsiders/openapi, whose Python is printed: 90 MB. --check: only says whether it is here.
set -eu
cd "$(dirname "$0")/.."
here=$PWD/build/outsiders/openapi version=4.32.5
if [ -x "$here/bin/schemathesis" ]; then echo "$here"; exit 0; fi
[ "${1:-}" = --check ] && exit 1
mkdir -p "$(dirname "$here")"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Schemathesis needs Python 3.10 or later" >&2; exit 1; }
python3 -m venv "$here" && "$here/bin/pip" install -q "schemathesis==$version" >&2 || { rm -rf "$here"; exit 1; }
echo "$here"
