#!/bin/bash
# Runs test suites one after the other: run_tests.sh [python] [typescript] [browser].
# All of them run even when one fails; each one's own summary is repeated at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=.cache/log
mkdir -p "$logs"
failed=()

suite() {
  local name=$1
  shift
  printf '\n\033[1m== %s tests\033[0m\n' "$name"
  "$@" 2>&1 | tee "$logs/test-$name.log"
  [[ ${PIPESTATUS[0]} == 0 ]] || failed+=("$name")
}

# The lines by which a runner sums itself up, without colours.
summary() {
  sed 's/\x1b\[[0-9;]*[A-Za-z]//g' "$logs/test-$1.log" | grep -E "$2" | tail -n "$3" | sed "s/^ */  /"
}

python_suite() {
  local selection="not full"
  [[ -n ${NOTEBOOKOS_FULL:-} ]] && selection="full or not full"
  # shellcheck disable=SC2086
  .venv/bin/python -m pytest --durations=15 -m "$selection" ${PYTEST_ARGS:-} && return
  # Many tests kill and start real processes. One that fails only on a busy machine passes now, and
  # is named by the first run's summary; one that fails twice has failed.
  printf '\n\033[1m== python tests: what failed, once more\033[0m\n'
  # shellcheck disable=SC2086
  .venv/bin/python -m pytest --last-failed --last-failed-no-failures none \
    -m "$selection" ${PYTEST_ARGS:-}
}

browser_suite() {
  export CHROMIUM=${CHROMIUM:-$(command -v chromium)}
  (cd ui-tests && CI=1 jlpm run playwright test)
}

for name in "$@"; do
  case $name in
    python) suite python python_suite ;;
    typescript) suite typescript jlpm run jest ;;
    browser) suite browser browser_suite ;;
    *)
      echo "unknown suite '$name': python, typescript or browser" >&2
      exit 2
      ;;
  esac
done

printf '\n\033[1m== summary\033[0m\n'
for name in "$@"; do
  echo "$name:"
  case $name in
    typescript) summary "$name" '^(Test Suites|Tests|Time):' 3 ;;
    browser) summary "$name" '^ *[0-9]+ (passed|failed|flaky|skipped|did not run)' 4 ;;
    python) summary "$name" '^=+ .*(passed|failed|error|no tests ran).* =+$' 2 ;;
  esac
done
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
