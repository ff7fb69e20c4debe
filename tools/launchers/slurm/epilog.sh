#!/bin/bash
# Slurm's epilog (slurm.conf: Epilog): checks that a job's Sumac jobs have ended on this node.
# As root, after Slurm has ended the job's processes. The daemon ends the jobs of a trainer that goes away, so
# nothing is left unless a process escaped: those of this Slurm job are ended here, and no others. An exit
# code other than 0 drains the node.
set -euo pipefail

config=${SUMAC_SLURM_CONFIG:-/etc/sumac/slurm.env}
# shellcheck source=/dev/null
[ ! -r "$config" ] || . "$config"
SUMAC_SOCKET=${SUMAC_SOCKET:-/run/sumac/sumac.sock}
SUMAC_WAIT=${SUMAC_WAIT:-10}

say() {
    printf 'sumac: %s\n' "$1" >&2
    logger -t sumac-epilog -- "job $SLURM_JOB_ID: $1" 2>/dev/null || true
}

# Prints the Sumac jobs of this Slurm job that are open. A daemon that does not answer has none: the next
# prolog reports it.
open_jobs() {
    local socket stats
    # shellcheck disable=SC2086 # The pattern names several files.
    for socket in ${SUMAC_SOCKET//\{local_rank\}/*}; do
        stats=$(sumac stats --json --socket "$socket" 2>/dev/null) || continue
        jq -r --arg job "$SLURM_JOB_USER:$SLURM_JOB_ID." '.jobs[].name | select(startswith($job))' <<<"$stats"
    done
}

ended_in_time() {
    local deadline=$((SECONDS + SUMAC_WAIT))
    until [ -z "$(open_jobs)" ]; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.2
    done
}

# Prints the processes of the user that this Slurm job started on this node: slurmd sets SLURMD_NODENAME in
# tasks alone, so that the shell of `salloc` is not one.
leftovers() {
    local process environment
    [ "$SLURM_JOB_UID" != 0 ] || return 0
    for process in /proc/[0-9]*; do
        [ "$(stat -c %u "$process" 2>/dev/null)" = "$SLURM_JOB_UID" ] || continue
        environment=$(tr '\0' '\n' 2>/dev/null <"$process/environ") || continue
        grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID" <<<"$environment" || continue
        grep -qx "SLURMD_NODENAME=$SLURMD_NODENAME" <<<"$environment" || continue
        printf '%s\n' "${process#/proc/}"
    done
}

ended_in_time && exit 0
mapfile -t processes < <(leftovers)
if [ "${#processes[@]}" -gt 0 ]; then
    say "ends the processes ${processes[*]} of user $SLURM_JOB_USER, which outlived the job and hold $(open_jobs | paste -sd' ')"
    kill -KILL "${processes[@]}" 2>/dev/null || true
fi
ended_in_time && exit 0
say "still open: $(open_jobs | paste -sd' '); \`sumac stats\` shows them"
exit 1
