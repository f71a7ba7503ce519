#!/bin/bash
# Sees to it that Debian's chromium is there; CHROMIUM=/path names another browser.
set -euo pipefail
browser=${CHROMIUM:-$(command -v chromium || true)}
if [[ -z $browser ]]; then
  echo "no chromium on PATH; installing Debian's package"
  bash "$(dirname "$0")/apt_install.sh" chromium fonts-dejavu-core
  browser=$(command -v chromium)
fi
echo "using $browser ($("$browser" --version 2>/dev/null || echo "version unknown"))"
