#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SGLang's own code, for tests that compare prompts with it, in build/engines/sglang (or $ENGINES_DIR/sglang): the wheel of one release, unpacked
# and not installed, and an environment above that of setup.sh with the few packages that its chats need beside it. No GPU; 170 MB.
#   sglang.sh            sets it up
#   sglang.sh test ...   runs the comparison; arguments go to pytest. KVR_OPS: chats of each family of templates (400)
set -eu
cd "$(dirname "$0")/../.."
export ENGINES_DIR=${ENGINES_DIR:-$PWD/build/engines} PYTHONDONTWRITEBYTECODE=1
dir=$ENGINES_DIR/sglang
version=0.5.23
fail() { echo "sglang: $*" >&2; exit 1; }
python=$ENGINES_DIR/venv/bin/python
[ -x "$python" ] || fail "no environment in $ENGINES_DIR: run 'make engines' first"
if [ ! -f "$dir/source/sglang/srt/entrypoints/openai/serving_chat.py" ]; then
  mkdir -p "$dir/source"
  "$python" -m pip download -q --no-deps --only-binary :all: --python-version 3.11 -d "$dir/dl" "sglang==$version"
  "$python" -m zipfile -e "$dir"/dl/sglang-"$version"-*.whl "$dir/source"
fi
if [ ! -x "$dir/venv/bin/python" ]; then
  "$python" -m venv --without-pip "$dir/venv"
  "$python" -c 'import site; print(site.getsitepackages()[0])' >"$(echo "$dir"/venv/lib/python3.*/site-packages)/base.pth"
fi
"$dir/venv/bin/python" -c 'import orjson, pybase64' 2>/dev/null || "$dir/venv/bin/python" -m pip install -q orjson pybase64
[ "${1:-}" = test ] || { echo "sglang: $version is in $dir"; exit 0; }
shift
exec "$dir/venv/bin/python" -m pytest -q -s -p no:cacheprovider tests/engines/test_tokens_like_sglang.py "$@"
