# SPDX-License-Identifier: Apache-2.0
# In a bare system: the Debian packages, from installed to purged (tests/install/root.sh).
online() {
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends curl pkg-config tcc libc6-dev ./*.deb
}

# The same packages with a higher version, in next/.
next() {
  local deb
  for deb in *.deb; do
    rm -rf tree
    dpkg-deb -R "$deb" tree
    sed -i 's/^Version: .*/&+next/; s/(= \([^)]*\))/(= \1+next)/' tree/DEBIAN/control
    dpkg-deb -b tree "next/$deb" >/dev/null
  done
}

offline() {
  kvroute --version
  kvroute check /etc/kvroute/kvroute.yaml
  python3 -c 'import kvroute; print("python3-kvroute", kvroute.__version__)'
  python3 pages.py operators-hour.md
  tcc consumer.c -o consumer $(pkg-config --cflags --libs kvroute)
  ./consumer
  mkdir next
  next
  echo "max-body-size: 1MiB" >>/etc/kvroute/kvroute.yaml # the operator's own line
  python3 one_answer.py kvroute --config /etc/kvroute/kvroute.yaml --meanwhile "dpkg -i --force-confold $(echo next/*.deb)"
  test "$(dpkg-query -W -f '${db:Status-Abbrev}${Version}' kvroute | sed 's/.*+/+/')" = +next
  grep -q '^max-body-size' /etc/kvroute/kvroute.yaml
  mkdir -p /var/lib/private/kvroute # as systemd makes it
  dpkg -r kvroute libkvroute-dev libkvroute0 python3-kvroute
  test -e /etc/kvroute/kvroute.yaml -a ! -e /usr/bin/kvroute
  dpkg -P kvroute libkvroute-dev libkvroute0 python3-kvroute
  if find / -xdev -name '*kvroute*' -not -path '/files/*' -not -path '/proc/*' | grep .; then return 1; fi
}
