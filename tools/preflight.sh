#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Says what is missing, with the apt line that brings it, before anything is written.
python=${1:-python3}
missing=""
need() { missing="$missing $1"; }
command -v "$python" >/dev/null 2>&1 || need python3
command -v git >/dev/null 2>&1 || need git
if command -v "$python" >/dev/null 2>&1; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "corral needs Python 3.11 or newer; $python is $("$python" -V 2>&1). Name another one: make PYTHON=python3.12 demo" >&2
    exit 2
  }
  "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || need python3-venv
fi
[ -z "$missing" ] && exit 0
echo "missing:$missing" >&2
echo "  sudo apt-get install -y$missing" >&2
exit 2
