#!/usr/bin/env bash
# Runs every test, as the user, the privileged ones among them (which skip without root unless
# REQUIRE_PRIVILEGED=1), and ends with one line that counts them all: `N passed, N failed, N skipped`.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed_steps=0

step() {
    printf '\n== %s\n' "$1"
    shift
    "$@" 2>&1 | tee -a "$log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || { failed_steps=$((failed_steps + 1)); printf 'FAILED: %s\n' "$*" | tee -a "$log"; }
}

step "units, simulation, model checking, eBPF programs" \
    cargo test --workspace --exclude sumac-tests --locked --no-fail-fast -- --nocapture --test-threads 2
# One at a time: each test has its lab on the same two cores.
step "end to end" cargo test -p sumac-tests --locked --no-fail-fast -- --nocapture --test-threads 1

results=$(grep -E '^test result:' "$log")
passed=$(grep -oE '[0-9]+ passed' <<<"$results" | awk '{ n += $1 } END { print n + 0 }')
failed=$(grep -oE '[0-9]+ failed' <<<"$results" | awk '{ n += $1 } END { print n + 0 }')
skipped=$(grep -cE '(^|[^A-Za-z])SKIP ' "$log")
# A step that failed without a failing test (a build error, a crash) must not pass for success.
[ "$failed_steps" -gt 0 ] && [ "$failed" -eq 0 ] && failed=$failed_steps
printf '\n%d passed, %d failed, %d skipped\n' "$((passed - skipped))" "$failed" "$skipped"
[ "$failed" -eq 0 ]
