#!/bin/bash
# Makes the environment: make_venv.sh PYTHON FOLDER. Does nothing when FOLDER works already.
set -euo pipefail
python=$1
folder=$2

if [[ -x $folder/bin/python ]] && "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
  echo "using $folder ($("$folder/bin/python" --version))"
  exit 0
fi
if [[ -z $python ]]; then
  echo "No python3 was found: install Python 3.11 or later, or name one with PYTHON=/path/to/python." >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$python is $("$python" --version), too old: name Python 3.11 or later with PYTHON=/path/to/python." >&2
  exit 1
fi
# Debian splits the venv module's pip off into a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "$python lacks the venv module; installing Debian's python3-venv"
  bash "$(dirname "$0")/apt_install.sh" python3-venv
fi
"$python" -m venv "$folder"
echo "made $folder ($("$folder/bin/python" --version))"
