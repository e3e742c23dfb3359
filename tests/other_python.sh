#!/usr/bin/env bash
# Capture's and the recorder's tests on Python 3.12 or newer, where mitmproxy is of another line (12.x). The first such
# Python found is taken, newest first, on PATH and among pyenv's; says so and succeeds where there is none.
#
#     tests/other_python.sh [FOLDER FOR THE VENV]        .cache/other-python
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.cache/other-python}

found=
for version in 3.13 3.12; do
    for candidate in "$(command -v "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
        if [ -z "$found" ] && [ -x "$candidate" ] && "$candidate" -c 'import ssl, sqlite3' 2>/dev/null; then
            found=$candidate
        fi
    done
done
if [ -z "$found" ]; then
    echo "== no Python 3.12 or 3.13 found: capture is tested with this Python's mitmproxy alone"
    exit 0
fi

stamp=$(cksum pyproject.toml constraints.txt | tr "\n" " ")
if [ "$(cat "$venv/.ready" 2>/dev/null)" != "$found $stamp" ]; then
    rm -rf "$venv"
    "$found" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
    echo "$found $stamp" >"$venv/.ready"
fi
"$venv/bin/python" -c 'import sys; from importlib.metadata import version
print(f"== Python {sys.version.split()[0]}, mitmproxy", version("mitmproxy"), flush=True)'
"$venv/bin/pytest" -q -p no:cacheprovider -m "not live and not slow" tests/proxy tests/recorder
