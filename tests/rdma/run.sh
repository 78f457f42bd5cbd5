#!/usr/bin/env bash
# Boots Debian's kernel in QEMU with an RDMA device made of software (soft-RoCE), runs the transfer tests and a completion
# over three processes inside, and compares its tokens with those of a single process on this machine.
# Usage: tests/rdma/run.sh [BUILD_FOLDER]     default: build/release
# Exit code 77: skipped, because QEMU or the kernel package cannot be had here; the last line says which.
# Environment: BATON_CACHE, RDMA_LIMIT_S (seconds the machine may run, default 240)
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/../../scripts/lib.sh"

build="$(cd "${1:-$REPO_ROOT/build/release}" && pwd)"
limit_s="${RDMA_LIMIT_S:-240}"
libraries=/usr/lib/x86_64-linux-gnu
# In the order in which they need each other. Without crc32_generic the driver of the device fails with ENOENT.
MODULES=(crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe configfs ib_cm iw_cm rdma_cm rdma_ucm dummy)
PROGRAMS=(baton-router baton-prefill baton-decode baton kvtransfer_test)
# Both machines compute with the same instructions, so that equal bytes give equal tokens.
COMPLETION_FLAGS=(--prompt-file "$here/prompt.txt" --max-tokens 24 --ignore-eos --temperature 0 --json)

# What is started ends with this script, even when that is killed.
tied=(setpriv --pdeathsig KILL)

work="$(mktemp -d)"
child=
clean_up() {
  if [[ -n $child ]]; then
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

skip() {
  echo "skipped: $*"
  exit 77
}

check_machine() {
  local tool
  [[ $(uname -m) == x86_64 ]] || skip "the machine to boot is an x86_64 one, this is $(uname -m)"
  for tool in qemu-system-x86_64 busybox rdma cpio dpkg apt-get; do
    command -v "$tool" >/dev/null || skip "$tool is not installed (scripts/install_packages.sh installs it)"
  done
  for tool in libibverbs/librxe-rdmav34.so ucx/libuct_ib.so.0 ucx/libuct_rdmacm.so.0; do
    [[ -e $libraries/$tool ]] || skip "$libraries/$tool is not installed"
  done
}

# Sets `kernel`, a folder with boot/vmlinuz-* and the modules. The package is unpacked there, never installed.
fetch_kernel() {
  local package
  package="$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*-amd64\)$/\1/p')"
  # What an earlier run has kept will do when the lists have gone or have moved on.
  if [[ -z $package || ! -e $BATON_CACHE/rdma/$package ]]; then
    if [[ -n $package ]] && download_kernel "$package"; then
      echo "kernel: $package unpacked in the cache"
    else
      package="$(ls "$BATON_CACHE/rdma" 2>/dev/null | grep '^linux-image-' | tail -n 1 || true)"
      [[ -n $package ]] || skip "the package linux-image-amd64 cannot be downloaded here"
    fi
  fi
  kernel="$BATON_CACHE/rdma/$package"
}

download_kernel() {
  need_free_mib "$BATON_CACHE/rdma" 600 "the kernel package"
  (cd "$work" && apt-get download -q "$1" >"$work/download.log" 2>&1) || return 1
  mkdir "$work/unpacked" "$work/kept"
  dpkg -x "$work/$1"_*.deb "$work/unpacked"
  cp "$work/unpacked/boot/"vmlinuz-* "$work/kept/vmlinuz"
  local module found
  for module in "${MODULES[@]}"; do
    found="$(find "$work/unpacked" -name "$module.ko")"
    [[ -n $found ]] || fail "the kernel package $1 has no module $module"
    cp "$found" "$work/kept/"
  done
  [[ -s $work/kept/vmlinuz ]] || fail "the kernel package $1 has no vmlinuz"
  rm -rf "$work/unpacked" "$work"/*.deb
  # In one step, so that nobody finds half of it.
  cp -r "$work/kept" "$BATON_CACHE/rdma/.$1.$$"
  mv -T "$BATON_CACHE/rdma/.$1.$$" "$BATON_CACHE/rdma/$1" 2>/dev/null || rm -rf "$BATON_CACHE/rdma/.$1.$$"
}

# with_libraries FILE...: each file at its own place in the image, with every library that it is linked to.
with_libraries() {
  local file
  for file in "$@"; do
    mkdir -p "$image/$(dirname "$file")"
    cp -L "$file" "$image/$file"
  done
  ldd "$@" 2>/dev/null | sed -n 's/^.*\(=> \|^\t\)\(\/[^ ]*\) (.*$/\2/p' | sort -u | while read -r file; do
    mkdir -p "$image/$(dirname "$file")"
    [[ -e $image/$file ]] || cp -L "$file" "$image/$file"
  done
}

make_image() {
  image="$work/image"
  mkdir -p "$image"/{bin,proc,sys,dev,tmp,etc/libibverbs.d,modules,baton}
  cp "$(command -v busybox)" "$image/bin/busybox"
  install -m 755 "$here/guest/init" "$image/init"
  cp "$here/guest/run_tests" "$here/prompt.txt" "$work/tiny.gguf" "$image/baton/"
  local module program
  for module in "${MODULES[@]}"; do
    cp "$kernel/$module.ko" "$image/modules/"
  done
  printf '%s\n' "${MODULES[@]}" >"$image/modules/order"
  for program in "${PROGRAMS[@]}"; do
    cp "$build/bin/$program" "$work/$program"
    strip "$work/$program" 2>/dev/null || true
  done
  echo 'driver rxe' >"$image/etc/libibverbs.d/rxe.driver"
  with_libraries "$(readlink -f "$(command -v rdma)")" "$libraries"/libibverbs/librxe-rdmav34.so \
    "$libraries"/ucx/libuct_ib.so.0 "$libraries"/ucx/libuct_rdmacm.so.0 "${PROGRAMS[@]/#/$work/}"
  cp -L "$libraries"/ucx/libuct_ib.so.0 "$image$libraries/ucx/libuct_ib.so"
  cp -L "$libraries"/ucx/libuct_rdmacm.so.0 "$image$libraries/ucx/libuct_rdmacm.so"
  for program in "${PROGRAMS[@]}"; do
    mv "$image$work/$program" "$image/bin/$program"
  done
  mv "$image$(readlink -f "$(command -v rdma)")" "$image/bin/rdma"
  (cd "$image" && find . | cpio --quiet -o -H newc) >"$work/initramfs"
}

# Everything that the machine says goes to $work/console.
boot() {
  local started="$SECONDS" code=0
  : >"$work/console"
  # Not /dev/kvm: where it is offered inside a virtual machine, the machine may never come to its first line.
  "${tied[@]}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 -nodefaults -display none -no-reboot \
    -serial "file:$work/console" -kernel "$kernel/vmlinuz" -initrd "$work/initramfs" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off" </dev/null &
  child=$!
  # Ends with the machine. Not in the foreground, where a signal to this script would have to wait for it.
  timeout "$limit_s" tail --pid="$child" -f /dev/null &
  wait $! || code=$?
  if [[ $code -ne 0 ]]; then
    tail -n 60 "$work/console"
    fail "the machine did not power off within $limit_s s and was killed"
  fi
  code=0
  wait "$child" || code=$?
  child=
  [[ $code -eq 0 ]] || fail "QEMU ended with code $code"
  echo "machine: $((SECONDS - started)) s from boot to power-off"
}

# The completion by one process on this machine, as the machine inside is to give it.
complete_here() {
  mkfifo "$work/ready"
  "${tied[@]}" "$build/bin/baton-decode" --model "$work/tiny.gguf" --cache "$work" --device cpu --cpu-isa plain --threads 1 \
    --kv-pool-size 16MiB --listen 127.0.0.1:0 >"$work/ready" 2>"$work/decode.log" </dev/null &
  child=$!
  local line=
  read -r -t 60 line <"$work/ready" || fail "baton-decode did not start: $(tail -n 5 "$work/decode.log")"
  local address
  address="$(sed -n 's/^ready .*grpc=\([^ ]*\).*/\1/p' <<<"$line")"
  "$build/bin/baton" complete --server "$address" "${COMPLETION_FLAGS[@]}" >"$work/here.json"
  kill -TERM "$child"
  wait "$child" || true
  child=
}

check_machine
for program in "${PROGRAMS[@]}" baton-make-tiny-model; do
  [[ -x $build/bin/$program ]] || fail "$build/bin/$program has not been built"
done
fetch_kernel
"$build/bin/baton-make-tiny-model" --gguf "$work/tiny.gguf" --vocabulary 320 --context-tokens 2048
make_image
echo "image: $(($(stat -c %s "$work/initramfs") / 1048576)) MiB"
complete_here
boot
"$SYSTEM_PYTHON" "$here/check.py" "$work/console" "$work/here.json" || {
  echo "--- the last lines of the machine's console:"
  tail -n "${RDMA_CONSOLE_LINES:-60}" "$work/console"
  exit 1
}
