#!/usr/bin/env bash
# Installs the NCCL plugin under the name by which NCCL loads it.
#   install.sh FOLDER    FOLDER: the build's, with libnccl_net_sumac.so: target/release
# From the environment: PREFIX (/usr/local), LIBDIR, and DESTDIR, which is put in front of it.
set -euo pipefail
[ $# -eq 1 ] || { printf 'install.sh: which folder has libnccl_net_sumac.so?\n' >&2; exit 2; }
libdir=${LIBDIR:-${PREFIX:-/usr/local}/lib}
install -d "${DESTDIR:-}$libdir"
install -m 644 "$1/libnccl_net_sumac.so" "${DESTDIR:-}$libdir/libnccl-net-sumac.so"
