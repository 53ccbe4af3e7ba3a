#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# root.sh SUITE SCRIPT FILE...: runs the functions `online` and `offline` of SCRIPT, a file of this folder, as root of a bare system, with
# this folder and the FILEs in /files. Only `online` has a network; `offline` has a loopback of its own. What they change is gone afterwards.
# Where there is a function `booted`, the system is booted, and it runs as a service.
# The system is made once, by debootstrap, with python3-venv, in build/roots/SUITE. Exit 77: it cannot be made here, with the reason.
set -euo pipefail
if [ "${1:-}" = --inside ]; then # mounts and processes are this script's own
  at=$2 base=$3 script=$4
  shift 4
  mount -t overlay none -o "lowerdir=$base,upperdir=$at/changed,workdir=$at/work" "$at/system"
  cp -r "$@" "$at/system/files"
  cp --remove-destination /etc/resolv.conf "$at/system/etc/resolv.conf"
  printf '#!/bin/sh\nexit 101\n' >"$at/system/usr/sbin/policy-rc.d" # as in a container: packages start no services
  chmod 755 "$at/system/usr/sbin/policy-rc.d"
  mount -t proc none "$at/system/proc"
  run=(env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive
    chroot "$at/system" bash -euo pipefail -c 'cd /files; . "./$0"; "$1"' "$script")
  "${run[@]}" online
  if grep -q '^booted()' "$at/system/files/$script"; then
    rm "$at/system/usr/sbin/policy-rc.d"
    cat >"$at/system/etc/systemd/system/files.service" <<EOF
[Unit]
After=multi-user.target
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
Environment=HOME=/root LC_ALL=C.UTF-8
WorkingDirectory=/files
ExecStart=/bin/bash -euo pipefail -c '. ./$script; booted'
StandardOutput=file:/files/said
StandardError=file:/files/said
EOF
    mkdir -p "$at/system/etc/systemd/system/default.target.wants"
    ln -s ../files.service "$at/system/etc/systemd/system/default.target.wants/"
    umount "$at/system/proc"
    mount -t tmpfs none /run # what systemd-nspawn leaves is gone, too
    rc=0
    timeout 300 systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe --boot -D "$at/system" </dev/null >"$at/console" 2>&1 || rc=$?
    cat "$at/console" "$at/system/files/said"
    exit "$rc"
  fi
  exec unshare -n bash -euc 'ip link set lo up; exec "$@"' _ "${run[@]}" offline
fi
suite=$1 script=$2
shift 2
cd "$(dirname "$0")/../.."
left_out() { echo "$suite: left out: $*"; exit 77; }
[ "$(id -u)" = 0 ] || left_out "only root makes a system in a folder"
command -v debootstrap >/dev/null || left_out "no debootstrap"
unshare -m -p -n -f true 2>/dev/null || left_out "no namespaces"
if grep -q '^booted()' "tests/install/$script" && ! command -v systemd-nspawn >/dev/null; then left_out "no systemd-nspawn"; fi
roots=$PWD/build/roots
if [ ! -e "$roots/$suite" ]; then
  mkdir -p "$roots"
  from=() like=()
  case "$suite" in
    jammy | noble) keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
      from=(--components=main,universe --keyring="$keys") like=("" gutsy) # the script of every Ubuntu, which Debian's debootstrap has not by each name
      [ -e "$keys" ] || left_out "no $keys: the package ubuntu-keyring of Ubuntu has it" ;;
  esac
  new=$(mktemp -d "$roots/.$suite.XXXXXX")
  chmod 755 "$new"
  debootstrap --variant=minbase --include=python3-venv "${from[@]}" "$suite" "$new" "${like[@]}" >"$roots/$suite.log" 2>&1 ||
    { tail -3 "$roots/$suite.log"; rm -rf "$new"; left_out "debootstrap could not make it"; }
  mv "$new" "$roots/$suite"
fi
at=$(mktemp -d "$roots/.run.XXXXXX")
trap 'rm -rf --one-file-system "$at"' EXIT
mkdir -p "$at/changed/files" "$at/work" "$at/system"
unshare -m -p -f --mount-proc --kill-child tests/install/root.sh --inside "$at" "$roots/$suite" "$script" tests/install/* "$@"
