#!/bin/sh
# Launches the CUDA compiler; what it prints is shown and kept beside the object as OBJECT.ptxas.
# Usage: keep_ptxas_report.sh COMPILER ARGUMENT...
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object="$argument"
  previous="$argument"
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.ptxas"
code=$?
cat "$object.ptxas" >&2
exit "$code"
