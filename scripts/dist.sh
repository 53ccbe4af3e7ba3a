#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The committed sources as build/dist/kvroute-VERSION.tar.gz, twice the same; prints the file. The version is that of include/kvroute/api.h,
# with which a tag vVERSION has to agree; a commit without a tag is on its way there: VERSION~gitTIME.COMMIT, which Debian takes for older.
# From the tarball everything builds without git; it has debian/changelog, so that `dpkg-buildpackage -b` does there.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -e .git ] || { echo "dist: these are the sources already: no clone" >&2; exit 1; }
version=$(sed -n 's/^#define KVR_VERSION_STRING "\(.*\)"/\1/p' include/kvroute/api.h)
tag=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
if [ -z "$tag" ]; then
  version+=~git$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y%m%d%H%M).$(git rev-parse --short HEAD)
elif [ "$tag" != "v$version" ]; then
  echo "dist: the tag is $tag, include/kvroute/api.h says $version" >&2
  exit 1
fi
git diff --quiet HEAD || echo "dist: what is not committed is not in it" >&2
out=build/dist
rm -rf "$out"
mkdir -p "$out"
cat >"$out/changelog" <<EOF
kvroute ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(git log -1 --format=%cD)
EOF
git archive --prefix="kvroute-$version/debian/" --add-file="$out/changelog" --prefix="kvroute-$version/" HEAD | gzip -n9 >"$out/kvroute-$version.tar.gz"
rm "$out/changelog"
ls "$out"/*.tar.gz
