# SPDX-License-Identifier: Apache-2.0
# For scripts that install Python wheels: to be sourced. PYTHON312 names the interpreter to use.

runs_312() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; }

# Prints the first candidate that is really Python 3.12 and can make an environment; a shim that only names it is none.
find_python() {
  local c
  for c in ${PYTHON312:+"$PYTHON312"} python3.12 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12 \
    /usr/local/bin/python3.12 /opt/*/bin/python3.12 "$HOME"/.local/share/uv/python/cpython-3.12*/bin/python3.12; do
    if runs_312 "$c"; then command -v "$c"; return 0; fi
  done
  return 1
}
