#!/usr/bin/env bash
# Installs libsumac for programs in C: the library, shared and static, its header and its pkg-config file.
#   install.sh FOLDER    FOLDER: the build's, with libsumac.so and libsumac.a: target/release
# From the environment: PREFIX (/usr/local), LIBDIR, INCLUDEDIR, and DESTDIR, which is put in front of all.
set -euo pipefail
[ $# -eq 1 ] || { printf 'install.sh: which folder has libsumac.so and libsumac.a?\n' >&2; exit 2; }
build=$1
here=$(dirname "$0")

prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
root=${DESTDIR:-}
version=$(sed -n 's/^#define SUMAC_VERSION "\(.*\)"$/\1/p' "$here/include/sumac.h")
abi=$(sed -n 's/^#define SUMAC_ABI_MAJOR \([0-9]*\)$/\1/p' "$here/include/sumac.h")

install -d "$root$libdir/pkgconfig" "$root$includedir"
install -m 644 "$build/libsumac.so" "$root$libdir/libsumac.so.$version"
ln -sf "libsumac.so.$version" "$root$libdir/libsumac.so.$abi"
ln -sf "libsumac.so.$abi" "$root$libdir/libsumac.so"
install -m 644 "$build/libsumac.a" "$root$libdir/libsumac.a"
install -m 644 "$here/include/sumac.h" "$root$includedir/sumac.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@INCLUDEDIR@|$includedir|" -e "s|@VERSION@|$version|" \
    "$here/sumac.pc.in" > "$root$libdir/pkgconfig/sumac.pc"
chmod 644 "$root$libdir/pkgconfig/sumac.pc"
