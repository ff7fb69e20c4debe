#!/bin/bash
# Runs a PyTorch script on this host as a part of a job of several: the same line on every host, in any order.
#   RENDEZVOUS=host1:29400 NODES=2 SUMAC_JOB=resnet ./train.sh train.py --epochs 10
# RENDEZVOUS  an address of one of the hosts, which all reach; its torchrun serves there
# NODES       the number of hosts
# SUMAC_JOB   the job's name, the same on all hosts and of no other job that runs now
# PROCESSES   trainers on this host (1), the same number on all hosts
# SUMAC_SOCKET, PYTHON  the daemon's socket, the interpreter
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
export SUMAC_SOCKET=${SUMAC_SOCKET:-/run/sumac/sumac.sock}
# With underscores also for torch 1.13.
exec "${PYTHON:-python3}" -m torch.distributed.run \
    --nnodes="${NODES:?the number of hosts}" --nproc_per_node="${PROCESSES:-1}" \
    --rdzv_backend=c10d --rdzv_endpoint="${RENDEZVOUS:?host:port}" --rdzv_id="${SUMAC_JOB:?the job\'s name}" "$@"
