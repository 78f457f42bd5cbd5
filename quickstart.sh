#!/usr/bin/env bash
# From a fresh clone to two completions: packages, build, model, a router with one prefill and one decode worker.
# Usage: ./quickstart.sh [--serve] [--port N]
#   --serve    leave the servers running until Ctrl-C
#   --port N   the router's port on 127.0.0.1 (default 8000; 0: a free one)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/lib.sh

PROGRAMS=build/release/bin
READY_SECONDS=120
# Longer than the servers' own drain grace: whoever is killed after it hangs.
STOP_SECONDS=35

serve=no
port=8000
usage() {
  echo "usage: ./quickstart.sh [--serve] [--port N]" >&2
  exit 2
}
while [[ $# -gt 0 ]]; do
  case "$1" in
    --serve) serve=yes ;;
    --port)
      [[ $# -gt 1 ]] || usage
      port="$2"
      shift
      ;;
    -h | --help)
      sed -n '2,5s/^# //p' "$0"
      exit 0
      ;;
    *) usage ;;
  esac
  shift
done
[[ $port =~ ^[0-9]{1,5}$ && $((10#$port)) -le 65535 ]] || usage
port="$((10#$port))"

roles=()
declare -A pid_of
work="$(mktemp -d)"

# Stops in the reverse order of the start, so that no server outlives one that it calls.
stop_all() {
  local index pid deadline
  for ((index = ${#roles[@]} - 1; index >= 0; index--)); do
    pid="${pid_of[${roles[index]}]}"
    kill -TERM "$pid" 2>/dev/null || true
    deadline=$((SECONDS + STOP_SECONDS))
    while kill -0 "$pid" 2>/dev/null; do
      if ((SECONDS > deadline)); then
        echo "quickstart.sh: ${roles[index]} did not stop within $STOP_SECONDS s and was killed" >&2
        kill -KILL "$pid" 2>/dev/null || true
        break
      fi
      sleep 0.05
    done
    wait "$pid" 2>/dev/null || true
  done
  roles=()
  rm -rf "$work"
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

port_is_taken() {
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

fail_with_log() {
  local role="$1" what="$2"
  echo "--- the last lines of $role:" >&2
  tail -n 20 "$work/$role.log" >&2
  fail "$what"
}

# start ROLE FLAG...: runs baton-ROLE and waits until it says that it can serve.
start() {
  local role="$1" deadline=$((SECONDS + READY_SECONDS))
  shift
  : >"$work/$role.out"
  # Ctrl-C reaches this script only; it stops the servers in order.
  setsid "$PROGRAMS/baton-$role" "$@" >"$work/$role.out" 2>"$work/$role.log" </dev/null &
  pid_of[$role]=$!
  roles+=("$role")
  until grep -q "^ready $role " "$work/$role.out"; do
    kill -0 "${pid_of[$role]}" 2>/dev/null || fail_with_log "$role" "baton-$role ended before it could serve"
    ((SECONDS < deadline)) || fail_with_log "$role" "baton-$role did not become ready within $READY_SECONDS s"
    sleep 0.1
  done
  echo "   $(cat "$work/$role.out")"
}

# address ROLE: the host:port at which a started role serves gRPC.
address() {
  sed -n 's/^ready .* *grpc=\([^ ]*\).*/\1/p' "$work/$1.out"
}

complete() {
  "$PROGRAMS/baton" complete --server "$(address router)" --temperature 0 --max-tokens 32 --json "$@" \
    >"$work/response.json" || fail_with_log router "the completion failed (see above)"
  "$SYSTEM_PYTHON" scripts/show_response.py "$work/response.json"
}

# Before the long part; the router would notice too, but only after it.
if [[ $port -ne 0 ]] && port_is_taken "$port"; then
  fail "port $port on 127.0.0.1 is taken; give another one with --port N"
fi
scripts/install_packages.sh
scripts/build.sh release baton baton-router baton-prefill baton-decode
scripts/fetch_model.sh

step "start: one decode worker, one prefill worker, the router"
start decode
start prefill
start router --decode "$(address decode)" --prefill "$(address prefill)" --listen "127.0.0.1:$port"

step "a short prompt"
complete "The capital of France is"

step "a long prompt"
{
  echo "Notes of a lighthouse keeper."
  for day in $(seq 1 60); do
    echo "Day $day: the wind was steady, and $((day * 7 % 23)) ships passed the cape before night."
  done
  printf 'In short, the keeper'
} >"$work/long_prompt.txt"
complete --prompt-file "$work/long_prompt.txt"

if [[ $serve == yes ]]; then
  router="$(address router)"
  step "serving on $router until Ctrl-C; in another terminal:"
  echo "   $PROGRAMS/baton complete --server $router \"Once upon a time\" --stream"
  echo "   $PROGRAMS/baton chat --server $router"
  echo "   grpcurl -plaintext $router list"
  echo "   grpcurl -plaintext -d '{\"text\": \"$(printf 'Once upon a time' | base64)\"}' $router baton.v1.Completions/Complete"
  # Any server that ends by itself ends the whole.
  wait -n || true
  for role in "${roles[@]}"; do
    kill -0 "${pid_of[$role]}" 2>/dev/null || fail_with_log "$role" "baton-$role ended by itself"
  done
fi
step "stop"
stop_all
step "done"
