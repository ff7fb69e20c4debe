#!/usr/bin/env bash
# Runs the units of the packet code under Miri, which checks every access of memory and every wrapped number.
# Miri needs rustup's nightly: `rustup toolchain install nightly --component miri --component rust-src`.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo +nightly miri --version >/dev/null 2>&1 || {
    printf 'miri: no nightly with Miri; rustup toolchain install nightly --component miri --component rust-src\n' >&2
    exit 1
}
# proptest reads the clock and its files of regressions; a few cases of each property suffice for accesses of memory.
export MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=4 CARGO_TARGET_DIR=target/miri
cargo +nightly miri test --locked -p sumac-wire --lib
