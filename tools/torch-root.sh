#!/usr/bin/env bash
# A root of Debian 13 (trixie), which carries a newer PyTorch than the host's Debian 12, and commands in it.
#   tools/torch-root.sh FOLDER               makes the root unless it is there (1 to 3 minutes, 250 MB fetched, 1.2 GB on disk)
#   tools/torch-root.sh FOLDER COMMAND...    makes it, and runs the command in it, in the checkout's folder
# The command runs in a mount namespace of its own and sees the checkout, and the programs in it, at their
# usual paths. Needs root and mmdebstrap.
set -euo pipefail

usage() { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }

[ $# -ge 1 ] || usage
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$(dirname "$1")"
root=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift

# setuptools: upstream's test cases import it.
packages=python3-torch,python3-numpy,python3-setuptools,python3-sklearn

make_root() {
    command -v mmdebstrap >/dev/null || { echo "torch-root: needs mmdebstrap: apt-get install mmdebstrap" >&2; exit 1; }
    [ "$(id -u)" = 0 ] || { echo "torch-root: needs root" >&2; exit 1; }
    rm -rf "$root.partial"
    mmdebstrap --quiet --variant=essential --include="$packages" \
        --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        trixie "$root.partial" "deb http://deb.debian.org/debian trixie main"
    mv "$root.partial" "$root"
}

[ -d "$root" ] || make_root
[ $# -gt 0 ] || exit 0
mkdir -p "$root$checkout"
# Debian's PyTorch is built without libuv, which its rendezvous otherwise asks for.
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 USE_LIBUV=0 ${SUMAC_BIN_DIR:+SUMAC_BIN_DIR="$SUMAC_BIN_DIR"} \
    unshare --mount -- bash -c '
        root=$1 checkout=$2; shift 2
        mount --rbind /proc "$root/proc"; mount --rbind /dev "$root/dev"; mount --rbind /sys "$root/sys"
        mount --bind "$checkout" "$root$checkout"
        exec chroot "$root" sh -c "cd \"\$0\" && exec \"\$@\"" "$checkout" "$@"
    ' torch-root "$root" "$checkout" "$@"
