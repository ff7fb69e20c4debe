#!/bin/bash
# Slurm's prolog (slurm.conf: Prolog, PrologFlags=Alloc): checks this node's Sumac daemon before a job with
# the constraint `sumac` starts. As root. An exit code other than 0 drains the node and requeues the job: the
# reason is in slurmd's log and in the system's.
set -euo pipefail

config=${SUMAC_SLURM_CONFIG:-/etc/sumac/slurm.env}
# shellcheck source=/dev/null
[ ! -r "$config" ] || . "$config"
SUMAC_SOCKET=${SUMAC_SOCKET:-/run/sumac/sumac.sock}
SUMAC_WAIT=${SUMAC_WAIT:-10}

# `&` and `|` combine constraints.
[[ ${SLURM_JOB_CONSTRAINTS:-} =~ (^|[^A-Za-z0-9_])sumac($|[^A-Za-z0-9_]) ]] || exit 0

refuse() {
    printf 'sumac: %s\n' "$1" >&2
    logger -t sumac-prolog -- "job $SLURM_JOB_ID: $1" 2>/dev/null || true
    exit 1
}

# A daemon that restarts gets some time: systemd starts it again.
answer() {
    local deadline=$((SECONDS + SUMAC_WAIT))
    until sumac stats --json --socket "$1"; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.2
    done 2>/dev/null
}

if [ -n "${SUMAC_INTERFACE:-}" ]; then
    found=$(sumac doctor "$SUMAC_INTERFACE" 2>&1) || refuse "doctor $SUMAC_INTERFACE: $(grep -A1 -i '^fail' <<<"$found" || tail -n1 <<<"$found")"
fi
# Of several daemons each has a socket: `{local_rank}` is every one that is here.
# shellcheck disable=SC2086 # The pattern names several files.
for socket in ${SUMAC_SOCKET//\{local_rank\}/*}; do
    stats=$(answer "$socket") || refuse "no daemon answers at $socket: $(sumac stats --json --socket "$socket" 2>&1 >/dev/null | tail -n1)"
    # A requeued job has its number again, and so its names.
    left=$(jq -r --arg job "$SLURM_JOB_USER:$SLURM_JOB_ID." '[.jobs[].name | select(startswith($job))] | join(", ")' <<<"$stats")
    [ -z "$left" ] || refuse "an earlier run of this job has left $left open at $socket: end the trainers that hold it"
done
