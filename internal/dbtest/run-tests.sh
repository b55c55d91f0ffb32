#!/usr/bin/env bash
# Runs every test and counts: passed, failed, skipped. A test that needs a server
# fails without one; only tests of containers may skip, with their reason.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp)
memory=
trap 'rm -rf "$out" $memory' EXIT
# Servers and targets in memory where it is plenty (what is there at any time is below
# 4 GB): a database of PostgreSQL is 300 files, and making them on a disk's file system
# takes eight times the processor's time. What Go builds stays where it was.
if [ -z "${TMPDIR:-}" ] && [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] &&
  [ "$(df --output=avail -m /dev/shm | tail -1)" -ge 8192 ] &&
  [ "$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)" -ge 12288 ]; then
  memory=$(mktemp -d /dev/shm/tr.XXXX) # short: the path of a socket has 107 bytes
  chmod 1777 "$memory"                 # servers run as users of their own
  printf '#!/bin/sh\n' >"$memory/runs" && chmod 755 "$memory/runs"
  if "$memory/runs" 2>/dev/null; then # programs that are tested lie there too
    export GOTMPDIR="${GOTMPDIR:-/tmp}" TMPDIR="$memory"
  fi
fi
# Two packages at a time: each may run a server and the machine may have two cores.
go test -count=1 -p 2 -timeout 30m -json "$@" ./... >"$out"
code=$?
go run ./internal/dbtest/testsum <"$out"
sum=$?
[ $code -ne 0 ] && exit $code
exit $sum
