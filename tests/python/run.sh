#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel, installs it into a clean environment without a network, and runs the tests against it. KVROUTE: the binary for
# the end-to-end test. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD build=$PWD/build/python
scripts/wheel.sh library >/dev/null
mkdir -p "$build"
rm -rf "$build/venv"
/usr/bin/python3 -m venv "$build/venv"
http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 "$build/venv/bin/python3" -m pip install -q --no-index --disable-pip-version-check build/wheel-library/kvroute-*.whl
cd "$build" # away from the sources
"$build/venv/bin/python3" -I -W error - "$root/bindings/python/README.md" <<'PY'
import re, sys
with open(sys.argv[1]) as f:
    blocks = re.findall(r"```python\n(.*?)```", f.read(), re.S)
assert blocks
for code in blocks:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
import kvroute
print("the README's examples ran in a clean environment, version", kvroute.__version__)
PY
library=$root/build/tokenizer/libkvr_tokenizer.so # made by scripts/tokenizer.sh, where there is a cargo
if [ -e "$library" ]; then export TOKENIZER_LIBRARY=$library; else set -- --ignore="$root/tests/python/test_tokenizer.py" "$@"; fi
site=$("$build/venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH=$site PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m pytest -q -p no:cacheprovider "$root/tests/python" "$@"
