#!/bin/bash
# Installs Debian packages: apt_install.sh PACKAGE... Uses sudo only when not root.
set -euo pipefail
if ! command -v apt-get >/dev/null; then
  echo "These packages are missing and this system has no apt-get: install them by hand: $*" >&2
  exit 1
fi
if [[ $(id -u) == 0 ]]; then
  root=()
elif command -v sudo >/dev/null; then
  root=(sudo)
else
  echo "Installing $* needs root or sudo: run 'apt-get install $*' as root, then repeat this command." >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update -q >/dev/null
"${root[@]}" apt-get install -q -y --no-install-recommends "$@" >/dev/null
