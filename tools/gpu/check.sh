#!/usr/bin/env bash
# Runs what needs a GPU, on a machine that has one: the cases of tensors on a device, and tables of all_reduce
# and a DDP step beside NCCL and Gloo, with reductions in two levels too.
#   tools/gpu/check.sh                      with python3's PyTorch
#   PYTHON=/path/bin/python tools/gpu/check.sh
# Ranks have daemons on this machine's loopback, over UDP. NCCL takes the tables' ranks for two hosts
# (NCCL_HOSTID), so it too goes over loopback. With two GPUs a second table has both of one host.
# Exit codes: 0 all passed, 1 something failed, 3 a program, PyTorch or a GPU is missing.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 3

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
# NCCL loads the plugin by this name.
for library in target/release/libnccl_net_sumac.so target/debug/libnccl_net_sumac.so; do
    if [ -z "${NCCL_PLUGIN_DIR:-}" ] && [ -e "$library" ]; then
        NCCL_PLUGIN_DIR=$(mktemp -d)
        trap 'rm -r "$NCCL_PLUGIN_DIR"' EXIT
        ln -s "$PWD/$library" "$NCCL_PLUGIN_DIR/libnccl-net-sumac.so"
        export NCCL_PLUGIN_DIR
    fi
done
[ -n "${NCCL_PLUGIN_DIR:-}" ] || printf 'NCCL with the plugin: SKIP: cargo build --release -p sumac-nccl\n'
failed=0
step() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" || { failed=1; printf '== failed: %s\n' "$name"; }
}

step "tensors on the GPU" env SUMAC_TEST_DEVICE=cuda "$PYTHON" -B -m unittest discover -v \
    -t userspace/python -s userspace/python/tests -p test_torch_device.py
step "two hosts, beside NCCL and Gloo" "$PYTHON" -B tools/gpu/compare.py --device cuda "${@}"
if "$PYTHON" -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)'; then
    step "one host of two GPUs" "$PYTHON" -B tools/gpu/compare.py --device cuda --daemons 1 "${@}"
else
    printf '\n== one host of two GPUs: SKIP: this machine has one\n'
fi
exit $failed
