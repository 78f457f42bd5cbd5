#!/usr/bin/env bash
# Installs the Debian 12 packages that building, testing and running Baton needs; only what is missing.
# Usage: scripts/install_packages.sh [--list]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PACKAGES=(
  # tools
  g++ cmake ninja-build ccache pkg-config binutils git ca-certificates clang-format-14 clang-14 libclang-rt-14-dev
  # RPC
  libgrpc-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  # KV transfer
  libucx-dev
  # the other libraries of cmake/BatonLibraries.cmake
  libabsl-dev libssl-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libpcre2-dev prometheus-cpp-dev
  # tests, the model's download; prometheus for promtool
  libgtest-dev libgmock-dev python3 python3-venv python3-pip prometheus
  # tests of real networks: namespaces, cuts, losses, rates (tests/support/network.h)
  iproute2 nftables util-linux
  # transfer-bench's network (ip); tests/rdma: a machine with a soft-RoCE device, its kernel's modules, its first image
  iproute2 qemu-system-x86 busybox-static rdma-core ibverbs-providers kmod cpio
)

if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${PACKAGES[@]}"
  exit 0
fi

if ! command -v dpkg-query >/dev/null; then
  step "packages: not a Debian system, so nothing is installed; see scripts/install_packages.sh --list"
  exit 0
fi

installed="$(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' "${PACKAGES[@]}" 2>/dev/null || true)"
missing=()
for package in "${PACKAGES[@]}"; do
  grep -qx "ii $package" <<<"$installed" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  step "packages: all ${#PACKAGES[@]} are installed"
  exit 0
fi

by_hand="apt-get install ${missing[*]}"
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || fail "packages are missing and this user is not root; run as root: $by_hand"
  as_root=(sudo)
  # Without a terminal nobody can type a password.
  [[ -t 0 ]] || as_root=(sudo -n)
  "${as_root[@]}" true || fail "packages are missing and sudo was refused; run as root: $by_hand"
fi

need_free_mib /var/cache 1500 "installing ${#missing[@]} packages"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300
     -o Acquire::Retries=3 -o Dpkg::Use-Pty=0)
step "packages: installing ${missing[*]}"
# A broken list of some other repository does not matter; whether the packages can be had, does.
"${apt[@]}" update || true
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" 2>&1 | tee "$log"; then
  if grep -q -i -e 'could not resolve' -e 'connection' -e 'failed to fetch' -e 'unable to connect' "$log"; then
    fail "no network: the Debian package server cannot be reached; once it can, run this again"
  fi
  if grep -q -i 'unable to locate package' "$log"; then
    fail "some packages are unknown here: either there is no network or this is not Debian 12; needed: ${missing[*]}"
  fi
  fail "the packages could not be installed (see above); by hand: $by_hand"
fi
# Only its promtool is wanted, not the server, which Debian starts.
if [[ " ${missing[*]} " == *" prometheus "* && -d /run/systemd/system ]]; then
  "${as_root[@]}" systemctl disable --now prometheus || true
fi
step "packages: done"
