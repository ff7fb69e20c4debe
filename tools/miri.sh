#!/usr/bin/env bash
# Runs the units of leases and packets under Miri, which checks every access of memory and every wrapped
# number. Miri needs rustup's nightly: `rustup toolchain install nightly --component miri --component
# rust-src`.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo +nightly miri --version >/dev/null 2>&1 || {
    printf 'miri: no nightly with Miri; rustup toolchain install nightly --component miri --component rust-src\n' >&2
    exit 1
}
# proptest reads the clock and its files of regressions; two cases of each property suffice for accesses of
# memory. Miri has no memfd, so of shared memory the leases run, over anonymous memory.
export MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=2
cargo +nightly miri test --locked -p sumac-memory --lib -- lease::
# The rest are tables over safe code, for which Miri takes more than five minutes.
cargo +nightly miri test --locked -p sumac-wire --lib -- frame:: bytes::
