#!/bin/bash
# Runs a talkative command: quiet.sh NAME COMMAND... Its output goes to a log, shown only on failure.
set -euo pipefail
name=$1
shift
logs=$(cd "$(dirname "$0")/.." && pwd)/.cache/log
mkdir -p "$logs"
started=$SECONDS
if "$@" >"$logs/$name.log" 2>&1; then
  echo "done in $((SECONDS - started)) s (log: .cache/log/$name.log)"
else
  code=$?
  tail -n 60 "$logs/$name.log" >&2
  echo "'$*' failed with exit status $code; the whole log is in .cache/log/$name.log." >&2
  exit "$code"
fi
