#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What token ids made by the router save, over an engine's front end of FastAPI and transformers: bench/tokens/measure.py has the words. Needs
# the tokenizer library (make tokenizer) and the environment of `make engines` (or TOKENS_PYTHON: a Python with fastapi, uvicorn and
# transformers). The model's folder is made once, in build/bench-tokens (some minutes); FOLDER names another.
set -eu
cd "$(dirname "$0")/.."
python=${TOKENS_PYTHON:-${ENGINES_DIR:-build/engines}/venv/bin/python}
folder=${FOLDER:-build/bench-tokens}
"$python" -c 'import fastapi, uvicorn, transformers, tokenizers' 2>/dev/null || {
  echo "bench-tokens: $python has no fastapi, uvicorn and transformers: make engines, or TOKENS_PYTHON=/path/to/python" >&2
  exit 2
}
[ -e build/tokenizer/libkvr_tokenizer.so ] || { echo "bench-tokens: no build/tokenizer/libkvr_tokenizer.so: make tokenizer" >&2; exit 2; }
[ -e "$folder/tokenizer.json" ] || "$python" bench/tokens/folder.py "$folder"
exec "$python" bench/tokens/measure.py build/release/kvroute "$folder" "$@"
