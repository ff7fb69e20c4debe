#!/usr/bin/env bash
# Checks the dependencies' licences, sources and advisories with cargo-deny.
#   tools/deny.sh            the advisory database is fetched; without access to it that check is reported as SKIP
#   ADVISORY_DB=DIR tools/deny.sh   a local clone of github.com/rustsec/advisory-db is used instead
set -euo pipefail
cd "$(dirname "$0")/.."

cargo deny --locked --all-features check --hide-inclusion-graph licenses bans sources

config=deny.toml
if [ -n "${ADVISORY_DB:-}" ]; then
    home=$(mktemp -d)
    trap 'rm -rf "$home"' EXIT
    config=$home/deny.toml
    sed "s|^\[advisories\]|[advisories]\ndb-path = \"$home/db\"|" deny.toml > "$config"
    cargo deny --locked fetch --config "$config" db >/dev/null 2>&1 || true
    clone=$(find "$home/db" -mindepth 1 -maxdepth 1 -type d | head -n 1)
    rm -rf "${clone:?no folder of the database was made}" && git clone -q "$ADVISORY_DB" "$clone"
elif ! cargo deny --locked fetch --config "$config" db 2>/dev/null; then
    echo "SKIP advisories: the RustSec advisory database cannot be fetched from here"
    exit 0
fi
cargo deny --locked --all-features check --config "$config" --disable-fetch advisories
