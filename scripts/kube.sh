#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real Kubernetes API server for tests/outsiders/test_kube.py alone (make test-kube): kube-apiserver, built with Go from the modules of
# Kubernetes, and Debian's etcd beneath it, unpacked and not installed. Both go to build/kube, which is printed; five minutes of two cores, and
# some 3 GB for as long as it builds. --check: only says whether they are here.
set -eu
cd "$(dirname "$0")/.."
here=$PWD/build/kube version=1.34.4
if [ -x "$here/kube-apiserver" ] && [ -x "$here/etcd" ]; then echo "$here"; exit 0; fi
[ "${1:-}" = --check ] && exit 1
go=$(command -v go || echo /usr/local/go/bin/go)
[ -x "$go" ] || { echo "the API server needs Go 1.24 or later" >&2; exit 1; }
mkdir -p "$here"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
fetch_etcd() {
  if command -v etcd >/dev/null; then ln -sf "$(command -v etcd)" "$here/etcd"; return; fi
  cd "$work" && apt-get download -q etcd-server && dpkg-deb -x etcd-server_*.deb etcd && cp etcd/usr/bin/etcd "$here/etcd"
}
# What Kubernetes has in its own tree are modules of the same version under another number.
replace_staging() {
  for m in $(sed -n 's|^\t\(k8s.io/[a-z-]*\) v0.0.0$|\1|p' "$work/go/pkg/mod/cache/download/k8s.io/kubernetes/@v/v$version.mod"); do
    "$go" mod edit -replace "$m=$m@v0${version#1}" || return 1
  done
}
build() {
  export GOPATH="$work/go" GOCACHE="$work/cache" GOFLAGS=-modcacherw
  mkdir -p "$work/src" && cp tests/outsiders/apiserver.go "$work/src/main.go" && cd "$work/src" &&
    "$go" mod init kvroute.test/apiserver && "$go" mod download "k8s.io/kubernetes@v$version" &&
    "$go" mod edit -require "k8s.io/kubernetes@v$version" && replace_staging &&
    "$go" build -mod=mod -p 2 -trimpath -ldflags "-s -w" -o "$here/kube-apiserver" .
}
for step in fetch_etcd build; do
  ($step) >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
done
echo "$here"
