# SPDX-License-Identifier: Apache-2.0
# In a bare system: the wheel, installed without a network, and one answer through the program in it (tests/install/root.sh).
online() { :; }

offline() {
  python3 -m venv /opt/kvroute
  PATH=/opt/kvroute/bin:$PATH
  pip install -q --no-index kvroute-*.whl
  kvroute --version
  python -m kvroute serve --help >/dev/null
  python -c 'import kvroute; tree = kvroute.RadixTree(); print("the library is", kvroute.__version__)'
  python one_answer.py kvroute
  pip uninstall -q -y kvroute
  test -z "$(find /opt/kvroute -name '*kvroute*' -not -name kvroute)"
}
