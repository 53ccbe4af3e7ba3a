#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Where prometheus and promtool are: prints the folder. Without them on PATH, Debian's package is unpacked into build/prometheus. It is not
# installed: that would start a service on port 9090, which is the admin port of `kvroute serve`. --check: only says whether they are here.
set -u
cd "$(dirname "$0")/.."
here=$PWD/build/prometheus/usr/bin
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then dirname "$(command -v promtool)"; exit 0; fi
if [ -x "$here/prometheus" ] && [ -x "$here/promtool" ]; then echo "$here"; exit 0; fi
[ "${1:-}" = --check ] && exit 1
command -v apt-get >/dev/null || { echo "prometheus and promtool are missing and apt-get is not here" >&2; exit 1; }
options=""
[ "$(id -u)" != 0 ] || options="-o APT::Sandbox::User=root" # a folder of ours is closed to apt's own user
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Any version that is there will do: 2.42 of Debian 12, and later ones.
get() { (cd "$work" && apt-get $options download -qq prometheus >/dev/null 2>"$work/why"); }
if ! get; then
  if [ "$(id -u)" = 0 ]; then apt-get update -qq >/dev/null 2>&1; elif command -v sudo >/dev/null; then sudo apt-get update -qq >/dev/null 2>&1; fi
  get || { echo "prometheus could not be fetched:" >&2; cat "$work/why" >&2; exit 1; }
fi
mkdir -p build/prometheus
dpkg -x "$work"/prometheus_*.deb "$work/x" || exit 1
mkdir -p "$here"
mv "$work/x/usr/bin/prometheus" "$work/x/usr/bin/promtool" "$here/"
echo "$here"
