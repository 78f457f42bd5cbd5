#!/usr/bin/env bash
# Configures and builds.
# Usage: scripts/build.sh [PRESET [TARGET...]]    PRESET: release (default), dev, tsan, nocuda, gpu
# Environment: BATON_WERROR=OFF to let warnings pass (another compiler than Debian 12's), BATON_JOBS
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO_ROOT"

preset="${1:-release}"
[[ $# -gt 0 ]] && shift
build="build/$preset"

# Clones of this repository share what they have compiled.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$REPO_ROOT}" CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"

# A source with gRPC headers takes up to 1 GiB to compile.
memory_gib="$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)"
jobs="${BATON_JOBS:-$(nproc)}"
[[ $jobs -le $memory_gib ]] || jobs="$((memory_gib > 0 ? memory_gib : 1))"

if [[ ! -e $build/build.ninja ]]; then
  need_free_mib build 3000 "the build"
fi
step "configure: preset $preset"
configure_log="$(mktemp)"
trap 'rm -f "$configure_log"' EXIT
if ! cmake --preset "$preset" -DBATON_WERROR="${BATON_WERROR:-ON}" >"$configure_log" 2>&1; then
  cat "$configure_log" >&2
  fail "configuring failed (see above)"
fi
step "build: ${*:-everything} in $build, $jobs at a time"
NINJA_STATUS="[%f/%t %es] " ninja -C "$build" -j "$jobs" "$@" || fail "the build failed (see above)"
