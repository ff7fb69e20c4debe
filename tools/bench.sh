#!/usr/bin/env bash
# Measures what docs/results.md says, on this machine, and writes that page anew:
# each measurement's JSON into docs/results/, then the page from those files.
#
#   tools/bench.sh            everything (a quarter of an hour)
#   tools/bench.sh NAME...    only these: programs straight chunk352 super small mbit100 gbit1 loss0.01 loss0.1 loss1
set -euo pipefail
cd "$(dirname "$0")/.."
bin=target/release out=docs/results
mkdir -p "$out"

wanted=("$@")
[ "$#" -gt 0 ] || wanted=(programs straight chunk352 super small mbit100 gbit1 loss0.01 loss0.1 loss1)

compare() { # NAME OPTIONS...: Sumac on XDP and UDP, Gloo and Open MPI, one after the other in one lab
    local name=$1
    shift
    printf 'bench: %s: sumac-lab compare %s\n' "$name" "$*" >&2
    "$bin/sumac-lab" compare --workers 4 "$@" --json > "$out/$name.json"
}

for name in "${wanted[@]}"; do
    case $name in
    programs)
        printf 'bench: the XDP programs, by the kernel'\''s own test run\n' >&2
        "$bin/sumac-agg" bench --elements 64,256,360 --workers 1,4,32 --repeat 2000000 --json > "$out/aggregator.json"
        "$bin/sumac" bench-xdp --elements 64,256,360 --repeat 2000000 --json > "$out/host.json"
        ;;
    straight) compare straight --elements 25000000 --tcp-offloads none ;;
    chunk352) compare chunk352 --elements 25000000 --chunk 352 --tcp-offloads none ;;
    super) compare super --elements 25000000 --tcp-offloads all ;;
    mbit100) compare mbit100 --elements 2500000 --rate 100mbit ;;
    gbit1) compare gbit1 --elements 25000000 --rate 1gbit ;;
    # The first has cables, whose loss is next to none: the others are relative to it.
    loss*) compare "$name" --elements 2500000 --rate 100mbit --loss "${name#loss}%" ;;
    small) compare small --elements 65536 --iterations 50 --tcp-offloads none ;;
    *) printf 'bench: no measurement %s\n' "$name" >&2; exit 2 ;;
    esac
done
/usr/bin/python3 tools/bench/render.py "$out" > docs/results.md
printf 'bench: wrote docs/results.md\n' >&2
