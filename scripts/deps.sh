#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing for: build, test, python, lint. Says what it does; asks nothing.
set -eu
build="gcc g++ cmake ninja-build pkg-config libuv1-dev libssl-dev libzmq3-dev libmsgpuck-dev libsimdjson-dev libxxhash-dev libyaml-dev libc-ares-dev libnats-dev libc6-dev"
test="libcmocka-dev python3 python3-pytest python3-zmq python3-msgpack python3-xxhash python3-jsonschema python3-hypothesis python3-venv openssl curl nats-server mypy"
python="python3 python3-dev python3-setuptools python3-wheel"
lint="clang-14 libclang-rt-14-dev clang-tidy clang-format"
want="$build"
prometheus=""
for what in "$@"; do
  case "$what" in
    build) ;;
    test) want="$want $test"; prometheus=yes ;;
    lint) want="$want $lint" ;;
    python) want="$want $python" ;;
    *) echo "usage: deps.sh [build] [test] [python] [lint]" >&2; exit 2 ;;
  esac
done
# llhttp is packaged as a library in newer releases and as sources beside node-llhttp in Debian 12.
if ! ls /usr/include/llhttp.h /usr/share/include/llhttp/llhttp.h >/dev/null 2>&1; then
  if apt-cache show libllhttp-dev >/dev/null 2>&1; then want="$want libllhttp-dev"; else want="$want node-llhttp"; fi
fi
missing=""
for p in $want; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
# For tests alone, and never as a service (scripts/prometheus.sh says why); without it those that need it are left out, and say so.
fetch_prometheus() {
  [ -z "$prometheus" ] || scripts/prometheus.sh >/dev/null || echo "the tests of alerts and the dashboard will be left out: no prometheus" >&2
}
cd "$(dirname "$0")/.."
[ -n "$missing" ] || { fetch_prometheus; exit 0; }
if ! command -v apt-get >/dev/null; then
  echo "these packages are missing and apt-get is not here:$missing" >&2
  exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "run as root, or install:$missing" >&2; exit 1; }
  sudo="sudo"
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# node-llhttp may not have been known before the lists were there
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
# Debian starts nats-server as a service on every interface; the tests run their own, so one that came with this installation is stopped.
case " $missing " in
  *" nats-server "*)
    if [ -d /run/systemd/system ]; then
      echo "stopping and disabling the nats-server service that came with the package"
      $sudo systemctl disable --now nats-server >/dev/null 2>&1 || echo "could not disable it: systemctl disable --now nats-server" >&2
    fi ;;
esac
fetch_prometheus
