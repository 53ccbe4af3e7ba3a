# SPDX-License-Identifier: Apache-2.0
# In a bare system: an hour of an operator's life with the program of the wheel, from installed to removed (tests/install/root.sh).
online() {
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends curl
}

offline() {
  python3 -m venv /opt/kvroute
  (PATH=/opt/kvroute/bin:$PATH && pip install -q --no-index kvroute-*.whl && python3 pages.py operators-hour.md && pip uninstall -q -y kvroute)
  test ! -e /opt/kvroute/bin/kvroute
}
