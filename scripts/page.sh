#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The page in a browser (tests/page): Debian's chromium, and two packages from npm that go to build/page. Where they are not there the test
# is left out, and says so. --check: only says whether the browser and npm are here. Screenshots: build/page/shots.
set -u
cd "$(dirname "$0")/.."
at=$PWD/build/page
chromium=$(command -v chromium)
for tool in chromium node npm; do
  command -v $tool >/dev/null || { echo "the page is not looked at in a browser: no $tool (apt-get install chromium nodejs npm)"; exit $([ "${1:-}" = --check ] && echo 1 || echo 0); }
done
[ "${1:-}" = --check ] && exit 0
mkdir -p "$at"
if ! cmp -s tests/page/package.json "$at/package.json"; then
  cp tests/page/package.json "$at/package.json.new"
  (cd "$at" && mv package.json.new package.json && npm install --no-audit --no-fund --no-package-lock --silent) ||
    { rm -f "$at/package.json"; echo "the page is not looked at in a browser: npm cannot fetch playwright-core and axe-core"; exit 0; }
fi
rm -rf "$at/shots"
PAGE_PACKAGES=$at PAGE_SHOTS=$at/shots PAGE_CHROMIUM=$chromium /usr/bin/python3 tests/page/fleet.py node tests/page/browse.mjs
