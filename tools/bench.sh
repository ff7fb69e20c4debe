#!/usr/bin/env bash
# Measures what docs/results.md says, on this machine, and writes that page anew: each case's JSON into
# docs/results/, then figures and page from those files.
#
#   tools/bench.sh            everything (forty minutes)
#   tools/bench.sh NAME...    only these cases or groups of cases
#   tools/bench.sh page       figures and page from the JSON that is there
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${SUMAC_BIN_DIR:-target/release} out=docs/results
# The commit of the programs. Whoever names others by SUMAC_BIN_DIR names their commit, too.
build=${SUMAC_BUILD:-$(git describe --always --dirty)}
mkdir -p "$out"

declare -A groups=(
    [straight]="n4-1500 n4-1500-gro n8-1500 n4-3506 n8-3506 n4-9000 n8-9000"
    [udp]="udp4 udp8 udp4-loopback"
    [mbit]="mbit2 mbit4 mbit8 mbit16"
    [ranks]="ranks2x4-gbit ranks4x2-udp ranks4x2-udp-small"
    [gbit]="gbit4-1500 gbit8-1500 gbit4-super gbit8-super"
    [latency]="tiny tiny-poll small small-super small-loss0 small-loss0.1 small-loss1"
    [loss]="loss0.01 loss0.1 loss1 loss1-fixed"
    [pool]="pool-mbit2 pool-mbit4 pool-mbit8 pool-mbit16 pool-mbit32 pool-mbit64 pool-mbit128
            pool-n2 pool-n4 pool-n8 pool-n16 pool-n32 pool-n64 pool-n128"
    [conversion]="conv-int32 conv-float32-fixed conv-float32 conv-float16 conv-bfloat16 conv-int16 conv-others"
    [bounded]="tail-256k tail-4m tail-4m-mbit stragglers convergence-digits convergence-breast-cancer"
    [dynamic]="dyn4-static dyn4 dyn4-s256 dyn4-s64 dyn4-co dyn4-none dyn4-loss0.1 dyn4-loss1 dyn4-free dyn6-two dyn6-one dyn6-none"
)

# The words of a case: `compare` of sumac-figures or `run` of sumac-lab, with its options.
all=(compare --libraries xdp,udp,gloo,mpi)
large=(--elements 25000000 --iterations 3)
# Sums of a few hundred milliseconds: more of them, as the machine's own speed changes meanwhile.
quick=(--elements 25000000 --iterations 15)
# The same slots for all of a comparison: what is measured on a busy machine may be the next power of two.
link_bound=(--workers 4 --elements 2500000 --rate 100mbit --iterations 5 --slots 64 --trace)
converted=(run --workers 4 --elements 10000000 --slots 64)
shared=(run --mode dynamic --elements 2500000 --rate 100mbit --iterations 3)
ranks=(compare --tcp-offloads all --libraries)
tiny=(--workers 2 --elements 1024 --iterations 1000 --warmup 20)
small=(--workers 4 --elements 65536 --iterations 300 --warmup 5)

case_of() { # NAME: the words of its command
    local digits=${1//[!0-9]/}
    case $1 in
    n4-1500) echo compare --workers 4 --tcp-offloads none "${large[@]}" ;;
    n4-1500-gro) echo "${all[@]}" --workers 4 "${large[@]}" ;;
    n8-1500) echo "${all[@]}" --workers 8 --tcp-offloads none "${large[@]}" ;;
    n[48]-3506) echo "${all[@]}" --workers "${1:1:1}" --mtu 3506 --tcp-offloads all "${large[@]}" ;;
    udp4-loopback) echo compare --libraries udp,gloo --topology loopback --workers 4 "${quick[@]}" ;;
    udp[48]) echo compare --libraries udp,gloo,mpi --workers "${1:3}" --tcp-offloads all "${quick[@]}" ;;
    # Frames of 9000 bytes come in several buffers, which XDP cannot broadcast to several ports.
    n[48]-9000) echo "${all[@]}" --workers "${1:1:1}" --mtu 9000 --topology one-arm --tcp-offloads all "${large[@]}" ;;
    mbit4) echo "${all[@]}" "${link_bound[@]}" ;;
    mbit2 | mbit8 | mbit16) echo "${all[@]}" --workers "$digits" --elements 2500000 --rate 100mbit --iterations 3 ;;
    gbit[48]-1500) echo "${all[@]}" --workers "${1:4:1}" --rate 1gbit "${large[@]}" ;;
    # Whoever sends frames larger than the MTU does not mind which it is; Sumac does.
    gbit[48]-super) echo "${all[@]}" --workers "${1:4:1}" --rate 1gbit --mtu 3506 --tcp-offloads all "${large[@]}" ;;
    # Hosts of several ranks: a cable carries one contribution of each host.
    ranks2x4-gbit) echo "${ranks[@]}" xdp,gloo --workers 2 --ranks-per-host 4 --rate 1gbit --mtu 3506 "${large[@]}" ;;
    ranks4x2-udp) echo "${ranks[@]}" udp,gloo --workers 4 --ranks-per-host 2 "${large[@]}" ;;
    ranks4x2-udp-small) echo "${ranks[@]}" udp,gloo --workers 4 --ranks-per-host 2 "${small[@]:2}" ;;
    tiny) echo "${all[@]}" "${tiny[@]}" ;;
    tiny-poll) echo compare --libraries xdp "${tiny[@]}" --poll ;;
    small) echo "${all[@]}" "${small[@]}" ;;
    small-super) echo "${all[@]}" "${small[@]}" --mtu 9000 --tcp-offloads all ;;
    # The same cables, which lose one frame in a million: next to none.
    small-loss0) echo "${all[@]}" "${small[@]}" --loss 0.0001% ;;
    small-loss*) echo "${all[@]}" "${small[@]}" --loss "${1#small-loss}%" ;;
    loss1-fixed) echo compare --libraries xdp --no-reassignment "${link_bound[@]}" --loss 1% ;;
    loss*) echo "${all[@]}" "${link_bound[@]}" --loss "${1#loss}%" ;;
    pool-mbit*) echo run --workers 4 --elements 2500000 --rate 100mbit --iterations 3 --slots "$digits" ;;
    pool-n*) echo run --workers 4 --elements 25000000 --iterations 2 --slots "$digits" ;;
    conv-others) echo compare --libraries gloo,mpi --workers 4 --elements 10000000 --tcp-offloads all ;;
    conv-int16) echo "${converted[@]}" --wire int16 ;;
    conv-float32-fixed) echo "${converted[@]}" --scale 1048576 ;;
    conv-*) echo "${converted[@]}" --dtype "${1#conv-}" ;;
    # Cables that mark, as those of dynamic jobs do; a static job does not mind.
    dyn4-static) echo run --workers 4 --elements 2500000 --rate 100mbit --iterations 3 --slots 64 --scale 1e8 --ecn-threshold 64 ;;
    dyn4) echo "${shared[@]}" --workers 4 ;;
    dyn4-s*) echo "${shared[@]}" --workers 4 --slots "${1#dyn4-s}" ;;
    dyn4-co) echo "${shared[@]}" --workers 4 --co-located ;;
    dyn4-loss*) echo "${shared[@]}" --workers 4 --loss "${1#dyn4-loss}%" ;;
    dyn4-free) echo "${shared[@]}" --workers 4 --no-congestion-control ;;
    dyn6-two) echo "${shared[@]}" --racks 2 --workers-per-rack 2 --beside-root 2 ;;
    dyn6-one) echo "${shared[@]}" --workers 6 ;;
    dyn[46]-none) echo "${shared[@]}" --workers "$digits" --no-aggregator ;;
    # 8 GB of tensors: more than a quarter of most machines, so that Gloo has no part in the last one.
    scale) echo scale --elements 1,1000,1000000,10000000,100000000,1000000000 ;;
    tail-256k) echo exchange --elements 65536 --rounds 8 --iterations 12 --gloo ;;
    tail-4m) echo exchange --elements 1048576 --rounds 4 --iterations 3 --loss 0,0.1%,1% --gloo ;;
    tail-4m-mbit) echo exchange --elements 1048576 --rate 100mbit --rounds 5 --iterations 4 --loss 0,0.1%,1% ;;
    stragglers) echo exchange --elements 1048576 --rate 100mbit --loss 0 --straggler none,slow,pauses --rounds 2 --iterations 3 ;;
    convergence-*) echo convergence --data "${1#convergence-}" ;;
    *) return 1 ;;
    esac
}

record() { # NAME: notes the build and the machine of a case that was measured
    touch "$out/builds.txt"
    { grep -v "^$1 " "$out/builds.txt" || true; printf '%s %s\n' "$1" "$build"; } | sort > "$out/builds.draft"
    mv "$out/builds.draft" "$out/builds.txt"
    local model
    model=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)
    printf 'Linux %s, %s cores of %s, %s\n' "$(uname -r)" "$(nproc)" "${model:-an unknown model}" "$(uname -m)" \
        > "$out/machine.txt"
}

measure() { # NAME
    local words
    words=$(case_of "$1") || { printf 'bench: no case %s; groups: programs convert sim mlt %s\n' "$1" "${!groups[*]}" >&2; exit 2; }
    local program=sumac-lab
    [[ $words != @(compare|exchange|convergence|scale)* ]] || program=sumac-figures
    printf 'bench: %s: %s %s\n' "$1" "$program" "$words" >&2
    # Renamed into place: a case that is interrupted leaves the last whole one. A library that fails has a row
    # that says so.
    # shellcheck disable=SC2086 # no word has a space
    "$bin/$program" $words --json > "$out/$1.draft" || printf 'bench: %s did not end with right sums\n' "$1" >&2
    if [ ! -s "$out/$1.draft" ]; then
        rm "$out/$1.draft"
        return
    fi
    mv "$out/$1.draft" "$out/$1.json"
    record "$1"
}

programs() {
    printf 'bench: the XDP programs, by the kernel'\''s own test run\n' >&2
    "$bin/sumac-figures" aggregator-program --elements 64,256,360,832 --workers 1,4,32 --repeat 2000000 --json > "$out/aggregator.json"
    "$bin/sumac-figures" aggregator-program --dynamic --elements 64,256,360,832 --workers 1,4,32 --repeat 2000000 --json > "$out/aggregator-dynamic.json"
    "$bin/sumac-figures" host-program --elements 64,256,360,832 --repeat 2000000 --json > "$out/host.json"
    record aggregator; record aggregator-dynamic; record host
}

convert() {
    printf 'bench: the converting pass, by criterion\n' >&2
    rm -rf target/criterion/memory
    cargo bench --quiet -p sumac-benches --bench convert -- '^memory/(i32 mean|f32|f32 fixed|f32 int16|f16|bf16)/' >&2
    tools/bench/criterion.py target/criterion/memory > "$out/convert.json"
    record convert
}

simulate() { # FIGURE [OPTION...]
    printf 'bench: sumac-figures %s\n' "$*" >&2
    "$bin/sumac-figures" "$@" --json > "$out/sim-$1.draft"
    mv "$out/sim-$1.draft" "$out/sim-$1.json"
    record "sim-$1"
}

[ "$#" -gt 0 ] || set -- programs convert sim straight udp mbit gbit ranks latency loss pool conversion dynamic bounded scale
for name in "$@"; do
    case $name in
    programs) programs ;;
    convert) convert ;;
    sim) for figure in fig10 fig13a fig14 fig15 fig16 traffic; do simulate "$figure"; done ;;
    mlt)
        for figure in mlt-fig14 mlt-fig15 mlt-fig16; do simulate "$figure" --seeds 3; done
        ;;
    sim-*) simulate "${name#sim-}" ;;
    page) ;;
    *) for member in ${groups[$name]:-$name}; do measure "$member"; done ;;
    esac
done
tools/bench/plot.py "$out"
tools/bench/render.py "$out" > docs/results.md
printf 'bench: wrote docs/results.md\n' >&2
