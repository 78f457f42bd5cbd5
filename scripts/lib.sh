# shellcheck shell=bash
# Shared by the scripts: sourced, never run. Sets REPO_ROOT, BATON_CACHE, SYSTEM_PYTHON.

REPO_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
BATON_CACHE="${BATON_CACHE:-${HOME:?HOME is not set}/.cache/baton}"
export BATON_CACHE

# Other Pythons may come first in PATH without venv or pip; Debian's has both as packages.
SYSTEM_PYTHON=/usr/bin/python3
[[ -x $SYSTEM_PYTHON ]] || SYSTEM_PYTHON=python3

# One line per step, so that a log without a terminal reads well too.
step() {
  printf '== %s\n' "$*"
}

fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# need_free_mib FOLDER MIB WHAT: stops when the file system of FOLDER has less than MIB free.
need_free_mib() {
  local folder="$1" needed="$2" what="$3" free
  mkdir -p "$folder" 2>/dev/null || fail "cannot make the folder $folder for $what"
  [[ -w $folder ]] || fail "cannot write to $folder, which is needed for $what"
  free="$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')"
  if [[ $free -lt $needed ]]; then
    fail "no disk space: $what needs $needed MiB in $folder, $free MiB are free"
  fi
}
