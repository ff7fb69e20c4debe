#!/usr/bin/env bash
# Runs every test, the privileged ones among them (which skip without root unless
# REQUIRE_PRIVILEGED=1), and ends with one line that counts them all: `N passed, N failed, N skipped`.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp) p4_log=$(mktemp) p4_tests=
trap '[ -z "$p4_tests" ] || kill "$p4_tests" 2>/dev/null; rm -f "$log" "$p4_log"' EXIT
broken_steps=0

step() {
    local name=$1 begin=$SECONDS
    printf '\n== %s\n' "$name"
    shift
    "$@" 2>&1 | tee -a "$log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || { broken_steps=$((broken_steps + 1)); printf 'FAILED: %s\n' "$*"; }
    printf '== %s: %d s\n' "$name" $((SECONDS - begin))
}

# The P4 compilers and the behavioural model: packed beside the checkout, else on PATH, else tests that need them are skipped.
p4=$(tools/p4.sh) || broken_steps=1
export PATH=$p4${p4:+:}$PATH
if command -v p4c-bm2-ss >/dev/null; then step "P4 programs" tools/p4/build.py --model; fi

# A test that hangs ends, and its binary with it, with a failure. The longest binary, end to end, takes about 13 minutes.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="timeout --kill-after=10 1800"
# The programs with overflow checks and debug assertions; cargo builds them with the tests of their packages.
export SUMAC_BIN_DIR=$PWD/target/debug
step "units, simulation, model checking, eBPF programs" \
    cargo test --workspace --locked --no-fail-fast -- --nocapture --test-threads 2
python_tests() { /usr/bin/python3 -m unittest discover -v -t "$1" -s "$1/tests"; }
# The P4 compilers keep one core busy for a minute, and the other Python tests leave one.
python_tests tools/p4 >"$p4_log" 2>&1 &
p4_tests=$!
for folder in userspace/python userspace/c tools/demo tools/figures/compare tools/bench tools/docs tools/launchers tools/monitoring tools/torch-tests tools/packaging tools/lint; do
    step "Python: $folder" python_tests "$folder"
done
wait "$p4_tests"
p4_status=$? p4_tests=
show() { cat "$1"; return "$2"; }
step "Python: tools/p4, beside the others" show "$p4_log" "$p4_status"
# One at a time: each test has its lab on the same two cores.
# The same packages as above, so that cargo selects the same features and builds nothing twice.
step "end to end" \
    cargo test --workspace --locked --no-fail-fast --test e2e -- --nocapture --test-threads 1

# What the failed tests printed, once more at the end: of each its last lines.
awk '/^test .* \.\.\. / { lines = 0 } { block[lines++] = $0 }
    / FAILED$|^FAILED$/ && !/^test result/ && !/^FAILED: / {
        printf "\n== failed: %s\n", block[0]
        for (at = (lines > 60 ? lines - 60 : 1); at < lines; at++) print block[at]
    }' "$log"

total() { awk '{ n += $1 } END { print n + 0 }'; }
passed=$(grep -E '^test result:' "$log" | grep -oE '[0-9]+ passed' | total)
failed=$(grep -E '^test result:' "$log" | grep -oE '[0-9]+ failed' | total)
# unittest says `Ran 5 tests in 1s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=1)`.
ran=$(grep -oE '^Ran [0-9]+ test' "$log" | grep -oE '[0-9]+' | total)
wrong=$(grep -E '^FAILED \(' "$log" | grep -oE '(failures|errors)=[0-9]+' | grep -oE '[0-9]+' | total)
left_out=$(grep -E '^(OK|FAILED) \(' "$log" | grep -oE 'skipped=[0-9]+' | grep -oE '[0-9]+' | total)
# A Rust test that cannot run says `SKIP name: why` and passes.
skipped=$(grep -cE '^(test .* \.\.\. )?SKIP ' "$log")
passed=$((passed - skipped + ran - wrong - left_out))
failed=$((failed + wrong))
skipped=$((skipped + left_out))
# A step that broke without a failing test (a build error, a crash) must not pass for success.
if [ "$broken_steps" -gt 0 ] && [ "$failed" -eq 0 ]; then failed=$broken_steps; fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
