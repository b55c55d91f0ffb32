#!/usr/bin/env bash
# Runs every test and counts: passed, failed, skipped. A test that needs a server
# fails without one; only tests of containers may skip, with their reason.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp)
trap 'rm -f "$out"' EXIT
# Two packages at a time: each may run a server and the machine may have two cores.
go test -count=1 -p 2 -timeout 30m -json "$@" ./... >"$out"
code=$?
go run ./internal/dbtest/testsum <"$out"
sum=$?
[ $code -ne 0 ] && exit $code
exit $sum
