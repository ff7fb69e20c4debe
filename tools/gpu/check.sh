#!/usr/bin/env bash
# Runs what needs a GPU, on a machine that has one: the cases of tensors on a device, reductions in two levels
# with NCCL inside a host, and a table of all_reduce and a DDP step beside NCCL and Gloo.
#   tools/gpu/check.sh                      with python3's PyTorch
#   PYTHON=/path/bin/python tools/gpu/check.sh
# Ranks have daemons on this machine's loopback, over UDP. The table's ranks share the first GPU: NCCL takes
# them for two hosts (NCCL_HOSTID), so it too goes over loopback.
# Exit codes: 0 all passed, 1 something failed, 3 a program, PyTorch or a GPU is missing.
set -uo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python3}
missing() { printf 'gpu/check: %s\n' "$*" >&2; exit 3; }

"$PYTHON" -c 'import torch' 2>/dev/null || missing "$PYTHON has no PyTorch: pip install torch numpy"
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    missing "PyTorch finds no GPU: nvidia-smi, and a PyTorch that is built for CUDA"
[ -n "${SUMAC_BIN_DIR:-}" ] || [ -x target/release/sumac ] || [ -x target/debug/sumac ] ||
    missing "sumac and sumac-agg are not built: make build"

"$PYTHON" -c 'import torch
print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {torch.cuda.nccl.version()},",
    f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")'
failed=0
step() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" || { failed=1; printf '== failed: %s\n' "$name"; }
}
cases() { "$PYTHON" -B -m unittest discover -v -t userspace/python -s userspace/python/tests "$@"; }

step "tensors on the GPU" env SUMAC_TEST_DEVICE=cuda "$PYTHON" -B -m unittest discover -v \
    -t userspace/python -s userspace/python/tests -p test_torch_device.py
step "two levels, Gloo inside a host" cases -p test_torch.py -k TwoLevels
step "beside NCCL and Gloo" "$PYTHON" -B tools/gpu/compare.py --device cuda "${@}"
exit $failed
