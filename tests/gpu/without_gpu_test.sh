#!/usr/bin/env bash
# run.sh on a machine without a GPU says so and ends with 77, never with a pass. Skipped (77) where a GPU is.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/gpu.sh"
if have_gpu; then
  echo "skipped: this machine has a GPU"
  exit 77
fi
code=0
output="$("$here/run.sh" 2>&1)" || code=$?
printf '%s\n' "$output"
[[ $code -eq 77 ]] || { echo "run.sh ended with $code, not 77"; exit 1; }
[[ $output == *"$NO_GPU"* ]] || { echo "run.sh did not say: $NO_GPU"; exit 1; }
[[ $output != *passed* ]] || { echo "run.sh speaks of something that passed"; exit 1; }
code=0
"$here/with_gpu.sh" true || code=$?
[[ $code -eq 77 ]] || { echo "with_gpu.sh ended with $code, not 77"; exit 1; }
