#!/usr/bin/env bash
# Runs the tests that need neither root nor namespaces: units, the decisions and their models, the simulations, the lints.
set -euo pipefail
cd "$(dirname "$0")/.."

# A test that hangs ends, and its binary with it.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="timeout --kill-after=10 300"
cargo test --workspace --locked --lib --bins
cargo test --locked -p sumac-wire -p sumac-transport -p sumac-parameter -p sumac-host -p sumac-memory -p sumac-sim
/usr/bin/python3 -m unittest discover -t tools/lint -s tools/lint/tests
