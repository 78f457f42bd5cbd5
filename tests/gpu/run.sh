#!/usr/bin/env bash
# Builds kernels and engine on a machine with a GPU, checks the kernels there, and prints what they reach.
# Usage: tests/gpu/run.sh [--results FILE]    FILE gets a copy of everything that is printed
# Ends with 0 when everything passed, 77 where no GPU is, 1 for anything else. Takes less than 8 minutes.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/gpu.sh"
source "$here/../../scripts/lib.sh"
cd "$REPO_ROOT"

case "${1:-}" in
  "") ;;
  --results)
    [[ $# -eq 2 ]] || fail "--results needs a file"
    exec > >(tee "$2") 2>&1
    ;;
  -h | --help)
    sed -n '2,4s/^# //p' "$0"
    exit 0
    ;;
  *) fail "unknown argument $1; see --help" ;;
esac

if ! have_gpu; then
  echo "$NO_GPU"
  exit 77
fi

# What the build needs, without gRPC and UCX: header or program, Debian package.
need_packages() {
  local missing=() header package program
  while read -r header package; do
    echo "#include <$header>" | c++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || missing+=("$package")
  done <<'LIST'
absl/status/statusor.h libabsl-dev
spdlog/spdlog.h libspdlog-dev
CLI/CLI.hpp libcli11-dev
openssl/evp.h libssl-dev
nlohmann/json.hpp nlohmann-json3-dev
gtest/gtest.h libgtest-dev
gmock/gmock.h libgmock-dev
LIST
  # Its header does not stand alone.
  pkg-config --exists libpcre2-8 2>/dev/null || missing+=(libpcre2-dev)
  while read -r program package; do
    command -v "$program" >/dev/null || missing+=("$package")
  done <<'LIST'
cmake cmake
ninja ninja-build
pkg-config pkg-config
LIST
  if [[ ${#missing[@]} -gt 0 ]]; then
    fail "missing here, by the names of Debian's packages: ${missing[*]}"
  fi
}

command -v c++ >/dev/null || fail "missing here: a C++20 compiler (g++ 12 is what is tested)"
need_packages
export PATH="$PATH:/usr/local/cuda/bin"
command -v nvcc >/dev/null || fail "missing here: nvcc of the CUDA Toolkit 13, in PATH or /usr/local/cuda/bin"

started=$SECONDS
# A step that hangs must not hang the whole.
within() {
  timeout --kill-after=10 "$@"
}

step "machine"
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv 2>/dev/null || true
nvcc --version | tail -n 2
git log -1 --format='commit %h of %cs' 2>/dev/null || true

BATON_WERROR=OFF scripts/build.sh gpu gpu_checks || fail "the build failed (see above)"
build=build/gpu

step "kernels against oracles, on the GPU"
within 150 ctest --test-dir "$build" -L '^gpu$' --no-tests=error --output-on-failure </dev/null ||
  fail "kernel tests failed (see above)"
# The second is how the shared suite begins its reason to skip when it cannot have the device.
if grep -q -e "$NO_GPU" -e 'device cuda:' "$build/Testing/Temporary/LastTest.log"; then
  fail "kernel tests were skipped though a GPU is here (see above)"
fi

problems=()
if command -v compute-sanitizer >/dev/null; then
  # Shapes in these tests are small enough for an emulator. What is left out takes thousands of draws.
  last=$((SECONDS + 180))
  for tool in memcheck racecheck synccheck; do
    for program in "$build"/bin/gpu_*_kernels_test "$build"/bin/gpu_attention_test; do
      name="compute-sanitizer $tool on $(basename "$program")"
      if ((SECONDS >= last)); then
        problems+=("$name: not run, the others took too long")
        continue
      fi
      step "$name"
      within $((last - SECONDS)) compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 5 \
        "$program" --gtest_brief=1 --gtest_filter='-*Distribution:*256k*' ||
        problems+=("$name: found errors, or took too long")
    done
  done
else
  step "compute-sanitizer: not installed, so not run"
fi

step "engine on random weights, beside the ceilings measured in the same run"
within 200 "$build/bin/gpu_bench" --device cuda || fail "gpu_bench failed (see above)"

took=$((SECONDS - started))
[[ $took -lt 480 ]] || problems+=("took $took s, more than 8 minutes")
if [[ ${#problems[@]} -gt 0 ]]; then
  printf 'FAILED: %s\n' "${problems[@]}"
  exit 1
fi
step "passed in $took s"
