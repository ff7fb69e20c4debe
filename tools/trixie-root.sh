#!/usr/bin/env bash
# A root of Debian 13 (trixie), and commands in it.
#   tools/trixie-root.sh [OPTION..] FOLDER              makes the root unless it is there
#   tools/trixie-root.sh [OPTION..] FOLDER COMMAND...   makes it, and runs the command in it
# A root is made with the packages that Debian calls essential, and apt. --packages A,B: with these too.
# --new: it is made anew.
# The command runs in the checkout's folder, in a mount namespace of its own. It sees the checkout, and the
# programs in it, at their usual paths. Needs root and mmdebstrap.
set -euo pipefail

die() { printf 'trixie-root: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '2,8s/^# \?//p' "$0" >&2; exit 2; }

packages='' new=0
while [ $# -gt 0 ]; do
    case $1 in
        --packages) [ $# -ge 2 ] || usage; packages=$2; shift 2 ;;
        --new) new=1; shift ;;
        -*) usage ;;
        *) break ;;
    esac
done
[ $# -ge 1 ] || usage
[ "$(id -u)" = 0 ] || die "needs root"
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$(dirname "$1")"
root=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift

# A file of the roots that this script made, and may remove.
mark=etc/sumac-trixie-root

make_root() {
    local authorities=usr/local/share/ca-certificates
    command -v mmdebstrap >/dev/null || die "needs mmdebstrap: apt-get install mmdebstrap"
    [ ! -e "$root" ] || [ -e "$root/$mark" ] || [ -z "$(ls -A "$root")" ] ||
        die "$root is no root that this script made: remove it, or name another folder"
    rm -rf "$root.partial" "$root"
    mmdebstrap --quiet --variant=apt ${packages:+"--include=$packages"} \
        --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        trixie "$root.partial" "deb http://deb.debian.org/debian trixie main"
    # Packages that are installed later start no services: processes of the root are the host's.
    printf '#!/bin/sh\nexit 101\n' >"$root.partial/usr/sbin/policy-rc.d"
    chmod +x "$root.partial/usr/sbin/policy-rc.d"
    # Certificate authorities of the host's site, with which crates are fetched.
    mkdir -p "$root.partial/$authorities"
    if [ -d "/$authorities" ]; then
        find "/$authorities" -name '*.crt' -exec cp -Lt "$root.partial/$authorities" {} +
    fi
    touch "$root.partial/$mark"
    mv "$root.partial" "$root"
}

if [ "$new" = 1 ] || [ ! -d "$root" ]; then make_root; fi
[ $# -gt 0 ] || exit 0
mkdir -p "$root$checkout"
[ ! -e /etc/resolv.conf ] || cp -L --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
# Debian's PyTorch is built without libuv, which its rendezvous otherwise asks for.
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 USE_LIBUV=0 \
    ${SUMAC_BIN_DIR:+SUMAC_BIN_DIR="$SUMAC_BIN_DIR"} \
    unshare --mount -- bash -c '
        root=$1 checkout=$2; shift 2
        mount --rbind /proc "$root/proc"; mount --rbind /dev "$root/dev"; mount --rbind /sys "$root/sys"
        mount --bind "$checkout" "$root$checkout"
        exec chroot "$root" sh -c "cd \"\$0\" && exec \"\$@\"" "$checkout" "$@"
    ' trixie-root "$root" "$checkout" "$@"
