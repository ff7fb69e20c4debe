#!/usr/bin/env bash
# Runs each fuzz target of `tests/fuzz/` under libFuzzer for its part of so many minutes, and keeps the inputs
# that reached new code in `tests/fuzz/targets/__fuzz__`. An input that fails is kept beside them; `make test`
# runs all of them.
#   tools/fuzz.sh MINUTES [TARGET..]
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=$1
shift
targets=("$@")
if [ "${#targets[@]}" -eq 0 ]; then
    # The rest are ordinary tests of the examples and of numpy files.
    mapfile -t targets < <(cargo test --quiet --locked -p sumac-fuzz --test targets -- --list 2>/dev/null |
        sed -n 's/: test$//p' | grep -v '::examples_are_\|::tests::')
fi
seconds=$((minutes * 60 / ${#targets[@]}))
failed=0
for target in "${targets[@]}"; do
    printf '\n== %s, %d s\n' "$target" "$seconds"
    # The stable compiler with its unstable flags: a nightly is not needed. AddressSanitizer would want a
    # nightly's library.
    cargo bolero test --package sumac-fuzz --profile fuzz --rustc-bootstrap --sanitizer NONE --engine libfuzzer \
        -T "${seconds}s" --max-input-length 400 "$target" || failed=$((failed + 1))
done
printf '\n%d targets, %d failed\n' "${#targets[@]}" "$failed"
[ "$failed" -eq 0 ]
