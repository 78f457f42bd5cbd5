#!/usr/bin/env bash
# Everything from a fresh clone to a tested build: packages, build, model, tests.
# Usage: ./test.sh [--all]    --all: also the tests labelled `slow`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/lib.sh

selection=(-LE slow)
case "${1:-}" in
  "") ;;
  --all) selection=() ;;
  -h | --help)
    sed -n '2,3s/^# //p' "$0"
    exit 0
    ;;
  *)
    echo "usage: ./test.sh [--all]" >&2
    exit 2
    ;;
esac

scripts/install_packages.sh
scripts/python_env.sh
scripts/fetch_model.sh
scripts/build.sh release
if ! command -v nvcc >/dev/null; then
  step "skipped: kernels/cuda and the tests that need a GPU (no nvcc on this machine)"
fi
step "test: build/release"
exec ctest --test-dir build/release --output-on-failure --no-tests=error -j "$(nproc)" "${selection[@]}" </dev/null
