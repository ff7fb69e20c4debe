#!/usr/bin/env bash
# Prints the folder of the P4 programs (compilers and behavioural model), to be put in front of PATH:
#   those that are packed beside the checkout, in ../shared/p4, unpacked once into target/p4-tools (10 s, 440 MB);
#   nothing where there is no such folder: then they are looked for on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."

packed=../shared/p4
[ -x "$packed/unpack" ] || exit 0
[ -d target/p4-tools ] || printf 'p4: unpacking the P4 programs into target/p4-tools\n' >&2
"$packed/unpack" target/p4-tools >&2
printf '%s\n' "$PWD/target/p4-tools/bin"
