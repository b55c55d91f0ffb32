#!/bin/sh
# A release with a wrong condition deletes rows; rewind and replay put them right.
# TAILRACE is the program (default: tailrace on PATH). Everything happens in a temporary folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tailrace=${TAILRACE:-tailrace}
case $tailrace in */*) tailrace=$(cd "$(dirname "$tailrace")" && pwd)/$(basename "$tailrace") ;; esac
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp -R "$here/orders.yaml" "$here/landing" "$dir"
cd "$dir"
say() { printf '\n== %s\n' "$1"; }

say "day 1: orders arrive"
"$tailrace" run --once -c orders.yaml
"$tailrace" checkpoint create -c orders.yaml --label "before the release"
"$tailrace" show -c orders.yaml orders

say "day 2: the release says that every event but 'placed' deletes"
sed "s/event = 'cancelled'/event <> 'placed'/" orders.yaml > wrong.yaml
cp "$here"/later/*.jsonl landing
"$tailrace" run --once -c wrong.yaml
"$tailrace" show -c wrong.yaml orders

say "the orders that changed are gone; back to before the release"
"$tailrace" checkpoint list -c orders.yaml
"$tailrace" rewind -c orders.yaml --to "before the release" --yes
"$tailrace" show -c orders.yaml orders

say "day 2 again, with the right condition"
"$tailrace" replay -c orders.yaml
"$tailrace" show -c orders.yaml orders
"$tailrace" show -c orders.yaml orders_history
