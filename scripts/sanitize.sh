#!/usr/bin/env bash
# Builds the tests of what handles a peer's bytes and of what has threads with sanitizers, and runs them.
# Usage: scripts/sanitize.sh [address|thread]...    both when none is named
#   address: preset dev, addresses and undefined behaviour    thread: preset tsan, our own threads (no UCX, no gRPC)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO_ROOT"

# UCX's memory hooks run before the thread sanitizer knows a new thread. The threads and locks of UCX and gRPC are not
# instrumented: tests over them (Moves among them) would report races of theirs.
export UCX_MEM_MMAP_HOOK_MODE=none

address() {
  local programs=(common_test kvtransfer_test kvtransfer_process_test kvtransfer_staging_test)
  local tests=("${programs[@]}" kvtransfer_device_pools_test)
  scripts/build.sh dev "${programs[@]}"
  step "test: addresses and undefined behaviour"
  ctest --test-dir build/dev --output-on-failure --no-tests=error -R "^($(IFS='|'; echo "${tests[*]}"))\$"
}

thread() {
  local tests=(common_test kvtransfer_test)
  scripts/build.sh tsan "${tests[@]}"
  step "test: threads"
  build/tsan/bin/common_test
  build/tsan/bin/kvtransfer_test --gtest_filter='-*ucx*:*Ucx*:*grpc*:*Grpc*:Moves.*:*IdleServicesSleep*'
}

for kind in "${@:-address thread}"; do
  for one in $kind; do
    case "$one" in
      address | thread) "$one" ;;
      *)
        sed -n '2,4s/^# //p' "$0" >&2
        exit 2
        ;;
    esac
  done
done
