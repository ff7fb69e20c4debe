#!/usr/bin/env bash
# Runs what CI has no time for, each step whatever became of the others and for a limited time, and prints a
# table of the outcomes, which it also writes to target/nightly.txt. A step for which the machine lacks
# something is skipped, and the table says why. The defaults are SEEDS=10000, MINUTES=10 (of fuzzing) and
# KILLS=50 (of chaos, in each mode). Exits with 1 when a step has failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

table=${TABLE:-target/nightly.txt}
failed=0 running=

row() { printf '%-28s %-8s %8s  %s\n' "$@" >>"$table"; }

# step NAME LIMIT LACK COMMAND..: runs a command for at most LIMIT seconds, unless the machine lacks
# something. A command whose last line is `SKIP what: why` has left that out.
step() {
    local name=$1 limit=$2 lack=$3 begin=$SECONDS status=0 outcome=ok reason=
    shift 3
    printf '\n== %s\n' "$name"
    if [ -n "$lack" ]; then
        printf 'skipped: %s\n' "$lack"
        row "$name" skipped 0 "$lack"
        return
    fi
    timeout --kill-after=30 "$limit" "$@" </dev/null >"$log" 2>&1 &
    running=$!
    tail -n +1 -f -s 0.2 --pid="$running" "$log"
    wait "$running" || status=$?
    running=
    if [ "$status" -ne 0 ]; then
        failed=1 outcome=FAILED reason="exit code $status"
        [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || reason="not done after $limit s"
    else
        reason=$(tail -n 1 "$log" | sed -n 's/^SKIP \(.*: .*\)/\1/p')
        [ -z "$reason" ] || outcome=skipped
    fi
    row "$name" "$outcome" $((SECONDS - begin)) "$reason"
}

# Prints what of `root` and programs is missing.
lack() {
    local need missing=()
    for need in "$@"; do
        case $need in
        root) [ "$(id -u)" = 0 ] || missing+=("needs root") ;;
        miri) cargo +nightly miri --version >/dev/null 2>&1 || missing+=("rustup's nightly has no miri") ;;
        *) command -v "$need" >/dev/null || missing+=("$need is not installed") ;;
        esac
    done
    (IFS=,; printf '%s' "${missing[*]}" | sed 's/,/, /g')
}

log=$(mktemp)
trap '[ -z "$running" ] || kill "$running" 2>/dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$(dirname "$table")"
: >"$table"
row step outcome seconds reason
# Sourced, by its test.
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0

minutes=${MINUTES:-10}
step "licences and advisories" 1200 "" make deny
step "instructions per packet" 2400 "$(lack valgrind)" make profile
step "whole hosts, many seeds" 7200 "" env SEEDS="${SEEDS:-10000}" \
    cargo test --locked --release -p sumac-sim --test hosts -- --nocapture
step "site" 1200 "" make book
step "man pages and completions" 2400 "" make doc
step "C library's installation" 2400 "" make install DESTDIR="$PWD/target/nightly-install"
step "pages of the reference" 2400 "" bash -c 'make reference && git diff --exit-code -- docs/reference'
step "leases under Miri" 2400 "$(lack miri)" make miri
step "set-up and build, Debian 13" 5400 "$(lack root)" make build-trixie
step "PyTorch's own cases" 2400 "" make torch-tests
step "the same on Debian 13" 3600 "$(lack root)" make torch-trixie
step "training frameworks" 3600 "" make torch-stacks
step "processes killed at random" 5400 "$(lack root)" make chaos KILLS="${KILLS:-50}"
step "Debian's kernels, emulated" 18000 "" make test-vm
step "arm64, emulated" 7200 "" make test-arm64 KERNEL=6.12
step "packages for arm64" 7200 "" make package-arm64
step "container images" 7200 "$(lack root buildah)" make container
step "fuzzing" $((minutes * 60 + 2400)) "" make fuzz MINUTES="$minutes"
printf '\n'
cat "$table"
exit "$failed"
