# SPDX-License-Identifier: Apache-2.0
# In a bare system: the services of deploy/compose, by their own commands and health checks, with the program of the wheel and Prometheus
# (tests/install/root.sh). Names of services are names of this machine.
online() { :; }

offline() {
  python3 -m venv /opt/venv
  /opt/venv/bin/pip install -q --no-index kvroute-*.whl
  ln -s /opt/venv/lib/python3*/site-packages/kvroute /opt/kvroute
  mkdir /etc/prometheus
  cp prometheus.yml kvroute.rules.yml /etc/prometheus
  python3 compose.py compose.json
}
