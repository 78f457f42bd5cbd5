#!/usr/bin/env bash
# run.sh on a pretended GPU, with programs of one line in place of those that need one: what fails makes it fail.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
source "$here/gpu.sh"

mkdir -p "$root"/{tests,scripts,path,build/gpu/bin,build/gpu/Testing/Temporary}
cp -r "$here" "$root/tests/"
cp "$here/../../scripts/lib.sh" "$root/scripts/"
echo 'have_gpu() { true; }' >>"$root/tests/gpu/gpu.sh"

program() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
program "$root/scripts/build.sh" 'echo "build $*"; exit "${BUILD_CODE:-0}"'
# Every header and package is there.
program "$root/path/c++" 'cat >/dev/null'
program "$root/path/pkg-config" ':'
program "$root/path/nvcc" 'echo nvcc'
program "$root/path/nvidia-smi" 'echo a GPU'
# shellcheck disable=SC2016
program "$root/path/ctest" 'echo "ctest $* ${CTEST_SAYS:-}" | tee build/gpu/Testing/Temporary/LastTest.log; exit "${CTEST_CODE:-0}"'
# shellcheck disable=SC2016
program "$root/path/compute-sanitizer" 'echo "checked by $2"; [[ $2 != "${BAD_TOOL:-}" ]]'
program "$root/build/gpu/bin/gpu_bench" 'echo "the table"; exit "${BENCH_CODE:-0}"'
touch "$root/build/gpu/bin/gpu_row_kernels_test" "$root/build/gpu/bin/gpu_attention_test"

# expect CODE TEXT [VARIABLE=VALUE...]: run.sh in this environment ends so and says so.
expect() {
  local code="$1" text="$2" output got=0
  shift 2
  output="$(env PATH="$root/path:$PATH" "$@" "$root/tests/gpu/run.sh" 2>&1)" || got=$?
  if [[ $got -ne $code || $output != *"$text"* ]]; then
    printf 'with %s: ended with %s, not %s, or did not say "%s":\n%s\n' "$*" "$got" "$code" "$text" "$output"
    exit 1
  fi
  if [[ $code -ne 0 && $output == *"== passed"* ]]; then
    printf 'with %s: speaks of a pass\n%s\n' "$*" "$output"
    exit 1
  fi
}
expect 0 "== passed in"
expect 0 "checked by synccheck"
expect 0 "the table"
expect 1 "the build failed" BUILD_CODE=1
expect 1 "kernel tests failed" CTEST_CODE=1
expect 1 "kernel tests were skipped" CTEST_SAYS="$NO_GPU"
expect 1 "kernel tests were skipped" CTEST_SAYS="[  SKIPPED ] device cuda: none"
for tool in memcheck racecheck synccheck; do
  expect 1 "compute-sanitizer $tool on gpu_attention_test: found errors" BAD_TOOL="$tool"
done
expect 1 "gpu_bench failed" BENCH_CODE=1
program "$root/path/c++" '! grep -q -e absl/ -e gmock/'
expect 1 "missing here, by the names of Debian's packages: libabsl-dev libgmock-dev"
echo "run.sh fails when one of its steps does"
