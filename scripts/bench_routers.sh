#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Public routers from Python wheels beside kvroute, over the same mock engines: docs/routers.md. The routers are installed once, each in
# an environment of its own below build/routers (or $ROUTERS_DIR), about 400 MB; what has been done is recognised. PYTHON312 names the
# interpreter. --setup only installs; everything else goes to bench/routers/run.py (--help).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
dir=${ROUTERS_DIR:-$root/build/routers}
wheels="sglang-router==0.3.2 smg==1.13.0 vllm-router==0.1.17"
. "$here/python312.sh"

say() { echo "bench-routers: $*" >&2; }

# is_there NAME VERSION: the wheel, by what pip leaves of it.
is_there() {
  local meta
  for meta in "$dir/$1"/lib/python3.12/site-packages/"${1//-/_}-$2.dist-info"/METADATA; do
    [ -f "$meta" ] && [ -x "$dir/$1/bin/$1" ] && "$dir/$1/bin/python" -c '' 2>/dev/null && return 0
  done
  return 1
}

# Prints why when it fails; the others are run without it.
install_one() {
  local name=${1%%==*} python
  python=$(find_python) || { say "$1: Python 3.12 with venv was not found. PYTHON312=/path/to/python3.12 names one; without it: 'uv python install 3.12' or 'pyenv install 3.12'"; return 1; }
  say "installing $1 in $dir/$name"
  rm -rf "${dir:?}/$name"
  if ! { "$python" -m venv "$dir/$name" && "$dir/$name/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$1"; } >"$dir/setup.log" 2>&1; then
    tail -5 "$dir/setup.log" >&2
    say "$1 could not be installed (all of it: $dir/setup.log; the package index: PIP_INDEX_URL, HTTPS_PROXY)"
    rm -rf "${dir:?}/$name"
    return 1
  fi
}

mkdir -p "$dir"
missing=0
for wheel in $wheels; do
  is_there "${wheel%%==*}" "${wheel##*==}" || install_one "$wheel" || missing=1
done
if [ "${1:-}" = --setup ]; then exit $missing; fi
ROUTERS_DIR="$dir" exec /usr/bin/python3 "$root/bench/routers/run.py" "$@"
