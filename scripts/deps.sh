#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing for: build, test, gateway, python, lint, deb, install, docs. Says what it does; asks nothing.
set -eu
build="gcc g++ cmake ninja-build pkg-config libuv1-dev libssl-dev libzmq3-dev libmsgpuck-dev libsimdjson-dev libxxhash-dev libyaml-dev libc-ares-dev libnats-dev libnghttp2-dev libc6-dev"
test="libcmocka-dev mandoc python3 python3-pytest python3-zmq python3-msgpack python3-xxhash python3-jsonschema python3-hypothesis python3-grpcio python3-protobuf protobuf-compiler libprotobuf-c-dev protobuf-c-compiler python3-venv python3-yaml openssl curl iproute2 nats-server mypy"
gateway="python3-h2"
python="python3 python3-dev python3-setuptools python3-wheel"
deb="debhelper dh-python lintian"
install="debootstrap systemd-container python3-yaml"
lint="clang-14 libclang-rt-14-dev clang-tidy clang-format"
docs="mkdocs"
want="$build"
prometheus=""
for what in "$@"; do
  case "$what" in
    build) ;;
    test) want="$want $test"; prometheus=yes ;;
    gateway) want="$want $gateway" ;;
    lint) want="$want $lint" ;;
    deb) want="$want $deb" ;;
    install) want="$want $install" ;;
    python) want="$want $python" ;;
    docs) want="$docs" ;;
    *) echo "usage: deps.sh [build] [test] [gateway] [python] [lint] [deb] [install] [docs]" >&2; exit 2 ;;
  esac
done
cd "$(dirname "$0")/.."
# llhttp is a library in newer releases. Debian 12 has its C sources, in node-llhttp, which needs nodejs: of it only the files are taken.
has_llhttp() {
  [ "$want" != "$docs" ] || return 0 # the documents need none
  for at in /usr/include /usr/share/include/llhttp build/llhttp/include/llhttp; do [ ! -e "$at/llhttp.h" ] || return 0; done
  return 1
}
fetch_llhttp() {
  mkdir -p build
  local at
  at=$(mktemp -d build/llhttp.XXXXXX)
  rm -rf build/llhttp
  (cd "$at" && apt-get download -qq node-llhttp >/dev/null 2>&1 && dpkg-deb -x node-llhttp_*.deb . && mkdir ../llhttp &&
    mv usr/share/llhttp usr/share/include usr/share/doc/node-llhttp/copyright ../llhttp) || true
  rm -rf "$at"
  has_llhttp || { echo "cannot fetch llhttp: install libllhttp-dev or node-llhttp" >&2; return 1; }
}
missing=""
for p in $want; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
# For tests alone, and never as a service (scripts/prometheus.sh says why); without it those that need it are left out, and say so.
fetch_prometheus() {
  [ -z "$prometheus" ] || scripts/prometheus.sh >/dev/null || echo "the tests of alerts and the dashboard will be left out: no prometheus" >&2
}
llhttp=""
has_llhttp || llhttp=" llhttp"
[ -n "$missing$llhttp" ] || { fetch_prometheus; exit 0; }
if ! command -v apt-get >/dev/null; then
  echo "these packages are missing and apt-get is not here:$missing$llhttp" >&2
  exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "run as root, or install:$missing$llhttp" >&2; exit 1; }
  sudo="sudo"
fi
echo "installing:$missing$llhttp"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# which llhttp there is, only the lists say
if [ -n "$llhttp" ] && apt-cache show libllhttp-dev >/dev/null 2>&1; then missing="$missing libllhttp-dev"; fi
[ -z "$missing" ] || $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
has_llhttp || fetch_llhttp
# Debian starts nats-server as a service on every interface; the tests run their own, so one that came with this installation is stopped.
case " $missing " in
  *" nats-server "*)
    if [ -d /run/systemd/system ]; then
      echo "stopping and disabling the nats-server service that came with the package"
      $sudo systemctl disable --now nats-server >/dev/null 2>&1 || echo "could not disable it: systemctl disable --now nats-server" >&2
    fi ;;
esac
fetch_prometheus
