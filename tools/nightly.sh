#!/usr/bin/env bash
# Runs what CI has no time for, each step whatever became of the others, and prints a table of the outcomes, which it also writes to
# target/nightly.txt. SEEDS=10000 and MINUTES=10 (of fuzzing) are the defaults. Exits with 1 when a step has failed.
set -uo pipefail
cd "$(dirname "$0")/.."

mkdir -p target
table=target/nightly.txt
printf '%-28s %-8s %8s\n' step outcome seconds >"$table"
failed=0

step() {
    local name=$1 begin=$SECONDS outcome=ok
    shift
    printf '\n== %s\n' "$name"
    "$@" || { outcome=FAILED; failed=1; }
    printf '%-28s %-8s %8d\n' "$name" "$outcome" $((SECONDS - begin)) >>"$table"
}

seeds() { SEEDS=${SEEDS:-10000} cargo test --locked --release -p sumac-sim --test hosts -- --nocapture; }

step "licences and advisories" make deny
step "whole hosts, many seeds" seeds
step "site" make book
step "PyTorch's own cases" make torch-tests
step "fuzzing" make fuzz MINUTES="${MINUTES:-10}"
step "C library's installation" make install DESTDIR="$PWD/target/nightly-install"
step "man pages and completions" make doc
printf '\n'
cat "$table"
exit "$failed"
