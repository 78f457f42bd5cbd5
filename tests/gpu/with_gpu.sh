#!/usr/bin/env bash
# Runs a command where a GPU is; elsewhere says so and ends with 77, which ctest shows as skipped.
# Usage: tests/gpu/with_gpu.sh COMMAND [ARGUMENT...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/gpu.sh"
if ! have_gpu; then
  echo "$NO_GPU"
  exit 77
fi
exec "$@"
