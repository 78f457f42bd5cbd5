#!/usr/bin/env bash
# Makes $BATON_CACHE/venv with the Python packages of the client test, unless it is there already.
# Usage: scripts/python_env.sh [SCRIPT [ARGUMENT...]]    with a script: runs it in that environment
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

requirements="$REPO_ROOT/scripts/python_requirements.txt"
venv="$BATON_CACHE/venv"
# A copy of the list, written last: its presence says that everything on it was installed.
stamp="$venv/installed_requirements.txt"

make_environment() {
  need_free_mib "$BATON_CACHE" 300 "the Python environment of the tests"
  # One maker at a time; the others find it finished.
  exec 9>"$BATON_CACHE/.venv.lock"
  flock 9
  if cmp -s "$requirements" "$stamp"; then
    return
  fi
  step "python: making $venv"
  rm -rf "$venv"
  "$SYSTEM_PYTHON" -m venv "$venv" || fail "cannot make a Python environment in $venv (is python3-venv installed?)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    -r "$requirements" </dev/null || fail "no network: the Python packages of the client test could not be installed; pip says why above"
  cp "$requirements" "$stamp"
}

if ! cmp -s "$requirements" "$stamp" || [[ ! -x $venv/bin/python ]]; then
  make_environment
fi
if [[ $# -gt 0 ]]; then
  exec "$venv/bin/python" "$@"
fi
step "python: $venv is ready"
