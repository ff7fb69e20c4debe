#!/bin/bash
# Slurm's task prolog (slurm.conf: TaskProlog): tells each task the daemon's socket, and a name for its Sumac
# job. As the user. What it prints as `export` is in the task's environment; what it prints as `print` in its
# output.
set -euo pipefail

config=${SUMAC_SLURM_CONFIG:-/etc/sumac/slurm.env}
# shellcheck source=/dev/null
[ ! -r "$config" ] || . "$config"
socket=${SUMAC_SOCKET:-/run/sumac/sumac.sock}

printf 'export SUMAC_SOCKET=%s\n' "$socket"
# The rule `jobs = ["{user}:*"]` of daemon.toml lets the user open it, and no other user. A step is a job:
# steps may run at the same time.
printf 'export SUMAC_JOB=%s:%s.%s\n' "$SLURM_JOB_USER" "$SLURM_JOB_ID" "${SLURM_STEP_ID:-batch}"

# Not the node's fault, so no reason for the prolog to drain it.
# shellcheck disable=SC2086 # The pattern names several files.
for path in ${socket//\{local_rank\}/*}; do
    if [ -S "$path" ] && [ ! -w "$path" ]; then
        printf 'print sumac: user %s may not connect to %s: its group is %s\n' "$SLURM_JOB_USER" "$path" "$(stat -c %G "$path")"
    fi
done
