#!/usr/bin/env bash
# The first sum of docs/tutorial.md: an aggregator and two hosts of one machine, over UDP on loopback.
#   tools/quickstart.sh BIN_DIR    BIN_DIR: the build's, with sumac and sumac-agg
# Needs no root. Everything is in a temporary folder, and ends with the script.
set -euo pipefail
[ $# -eq 1 ] || { sed -n '3p' "$0" >&2; exit 2; }
root=$(realpath "$(dirname "$0")/..")
PATH=$(realpath "$1"):$PATH
export PATH PYTHONPATH=$root/userspace/python
folder=$(mktemp -d)
cd "$folder"

# Started processes, the last one first.
processes=()
end() {
    local status=$?
    [ "$status" = 0 ] || tail -n 5 ./*.log >&2
    for process in "${processes[@]}"; do
        kill "$process" 2>/dev/null && wait "$process" || true
    done
    rm -rf "$folder"
}
trap end EXIT

begin() { # NAME COMMAND..: in the background, with its output in NAME.log
    local name=$1
    shift
    printf '  %s &\n' "$*"
    "$@" >"$name.log" 2>&1 &
    processes=($! "${processes[@]}")
}

await() { # PATH of a socket, or of a file that is not empty
    for _ in $(seq 200); do
        [ -S "$1" ] || [ -s "$1" ] && return
        kill -0 "${processes[0]}" 2>/dev/null || break
        sleep 0.1
    done
    printf 'quickstart: no %s; the last lines of the logs:\n' "$1" >&2
    exit 1
}

umask 077
printf '\nAn aggregator, which is a process here and needs no XDP:\n'
begin aggregator sumac-agg serve --plane host --state-dir agg --listen 127.0.0.1:48600 --data-ip 127.0.0.1
await agg/certificate.pem
sumac-agg token --state-dir agg >token
printf '\nA daemon for each of two hosts:\n'
for rank in 0 1; do
    printf '%s\n' "socket = 'host$rank.sock'" "backend = 'udp'" "address = '127.0.0.$((rank + 2))'" \
        "aggregator = '127.0.0.1:48600'" "secret_file = 'token'" >"host$rank.toml"
    begin "host$rank" sumac daemon --config "host$rank.toml"
    await "host$rank.sock"
done
cat >worker.py <<'PYTHON'
import sys
import time

import numpy
import sumac

rank = int(sys.argv[1])
with sumac.Client(f"host{rank}.sock") as client, client.open("first", rank=rank, world=2) as job:
    gradients = job.buffer(25_000_000, "float32")
    gradients[:] = rank + 1
    begin = time.perf_counter()
    job.allreduce(gradients)
    seconds = time.perf_counter() - begin
    found = numpy.unique(gradients)
    print(f"  rank {rank} contributed {rank + 1}.0 and has {found} everywhere, in {seconds:.2f} s")
PYTHON
printf '\nA trainer on each: 100 MB of float32, summed by the aggregator:\n'
begin rank1 /usr/bin/python3 worker.py 1
/usr/bin/python3 worker.py 0
wait "${processes[0]}"
cat rank1.log
processes=("${processes[@]:1}")
printf '\nNext: docs/tutorial.md trains with PyTorch on these, and goes on inside XDP programs.\n'
