# SPDX-License-Identifier: Apache-2.0
# In a bare system that is booted: the package as a service, upgraded under load (tests/install/root.sh).
online() {
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends systemd systemd-sysv ./kvroute_*.deb
}

booted() {
  trap 'journalctl --no-pager -u kvroute' EXIT
  . ./deb.sh
  local old new
  mkdir next
  next
  systemctl is-active kvroute
  kvroute mock --port 18101 --kv-events tcp://127.0.0.1:18102 --kv-replay tcp://127.0.0.1:18103 --speedup-ratio 20 &
  echo 'worker: "http://127.0.0.1:18101,events=tcp://127.0.0.1:18102,replay=tcp://127.0.0.1:18103"' >>/etc/kvroute/kvroute.yaml
  systemctl restart kvroute
  old=$(systemctl show -P MainPID kvroute)
  test "$(stat -c %u "/proc/$old")" -ge 61184 # of systemd's dynamic users
  systemctl show -p StatusText -p WatchdogUSec -p Type kvroute
  systemctl reload kvroute
  python3 under_load.py "dpkg -i --force-confold next/*.deb"
  new=$(systemctl show -P MainPID kvroute)
  test "$new" != "$old" -a "$(readlink "/proc/$new/exe")" = /usr/bin/kvroute
  systemctl is-active kvroute
  systemctl restart kvroute
  systemctl stop kvroute
  test "$(systemctl show -P Result kvroute)" = success
  dpkg -P kvroute
  if systemctl cat kvroute; then return 1; fi
  test ! -e /etc/kvroute -a ! -e /var/lib/private/kvroute
}
