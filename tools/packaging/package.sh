#!/usr/bin/env bash
# Builds the Debian packages and the wheel from built programs.
#   tools/packaging/package.sh BIN_DIR [--version V] [--fast] [--output DIR] [--arm64 NATIVE_BIN_DIR]
# BIN_DIR has sumac and sumac-agg, and perhaps sumac-lab, sumac-figures, libsumac and the NCCL plugin.
# --version: another than that of the sources. --fast: large packages, for tests. --arm64: the programs are
# arm64's; those of the other folder run here, and print the manual pages. Needs what
# `tools/setup.sh --packages` installs.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin_dir=$1
shift
native='' target='' strip=strip
output=target version='' compression=(--compress-type xz) tree_compression=(-Zxz)
while [ $# -gt 0 ]; do
    case $1 in
        --version) version=$2; shift 2 ;;
        --output) output=$2; shift 2 ;;
        --arm64) native=$2 target=aarch64-unknown-linux-gnu strip=/usr/lib/llvm-22/bin/llvm-strip; shift 2 ;;
        --fast) compression=(--compress-type gz --fast) tree_compression=(-Zgzip -z1); shift ;;
        *) echo "package.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
output=$(realpath -m "$output")

# cargo-deb takes programs from `release` of the target directory, and debug builds not at all: it gets a
# directory of its own.
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
laid=$stage/${target:+$target/}release
mkdir -p "$laid"/{man,completions,sysusers,systemd} "$output/debian" "$output/wheels"
for program in sumac sumac-agg sumac-lab sumac-figures; do
    [ ! -x "$bin_dir/$program" ] || "$strip" -o "$laid/$program" "$bin_dir/$program"
done
for program in sumac sumac-agg; do
    runs=${native:-$laid}/$program
    "$runs" man "$laid/man/$program"
    gzip -9n "$laid/man/$program"/*
    for shell in bash zsh fish; do
        "$runs" completions $shell >"$laid/completions/$program.$shell"
    done
    cp tools/packaging/sysusers.conf "$laid/sysusers/$program.conf"
done
cp tools/packaging/systemd/sumac-pins.service "$laid/systemd/sumac-agg-pins.service"

packages=(sumac sumac-agg)
[ ! -x "$laid/sumac-lab" ] || [ ! -x "$laid/sumac-figures" ] || packages+=(sumac-lab)
for package in "${packages[@]}"; do
    CARGO_TARGET_DIR=$stage cargo deb --quiet --locked --no-build --no-strip "${compression[@]}" --compress-system --package "$package" \
        --output "$output/debian/" ${version:+--deb-version "$version"} \
        ${target:+--target "$target" --variant cross}
done

own_version=$(sed -n 's/^version = "\(.*\)"/\1/p' userspace/python/pyproject.toml)
version=${version:-$own_version}
architecture=$([ -z "$target" ] && dpkg --print-architecture || echo arm64)

# Builds a package of the files in $stage/NAME: pack NAME ARCHITECTURE SECTION DEPENDS SUMMARY TEXT
pack() {
    local tree=$stage/$1
    install -D -m 644 tools/packaging/copyright "$tree/usr/share/doc/$1/copyright"
    mkdir -p "$tree/DEBIAN"
    cat >"$tree/DEBIAN/control" <<CONTROL
Package: $1
Version: $version
Architecture: $2
Section: $3
Priority: optional
Maintainer: Sumac maintainers <maintainers@users.noreply.a-seed-01593650.example>
Depends: $4
Description: $5
 $6
CONTROL
    dpkg-deb --root-owner-group "${tree_compression[@]}" --build "$tree" "$output/debian/" >/dev/null
}

# The client in Python: a wheel, and the same files as a package for Debian's Python.
cp -r userspace/python "$stage/wheel"
sed -i "s/^version = .*/version = \"$version\"/" "$stage/wheel/pyproject.toml"
/usr/bin/python3 -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$stage/wheels" "$stage/wheel"
cp "$stage"/wheels/sumac-*.whl "$output/wheels/"
/usr/bin/python3 -m pip install --quiet --no-deps --no-index --no-compile --no-warn-script-location --root-user-action ignore \
    --target "$stage/python3-sumac/usr/lib/python3/dist-packages" "$stage"/wheels/sumac-*.whl
pack python3-sumac all python 'python3 (>= 3.10), python3-numpy' "Sums of gradients inside the network: a trainer's client" \
    'Connects to the daemon of the package sumac on the same host.'

libdir=/usr/lib/$([ -z "$target" ] && dpkg-architecture -qDEB_HOST_MULTIARCH || echo aarch64-linux-gnu)

# A package of a library that the dynamic linker is to find; as `pack`.
pack_library() {
    mkdir -p "$stage/$1/DEBIAN"
    echo 'activate-noawait ldconfig' >"$stage/$1/DEBIAN/triggers"
    "$strip" --strip-unneeded "$stage/$1$libdir"/*.so*
    pack "$1" "$architecture" libs 'libc6 (>= 2.34), libgcc-s1' "$2" "$3"
}

# The client in C and the NCCL plugin, where they are built.
if [ -e "$bin_dir/libsumac.so" ]; then
    PREFIX=/usr LIBDIR=$libdir DESTDIR=$stage/libsumac-dev userspace/c/install.sh "$bin_dir"
    mkdir -p "$stage/libsumac0$libdir"
    mv "$stage/libsumac-dev$libdir"/libsumac.so.* "$stage/libsumac0$libdir/"
    "$strip" --strip-debug "$stage/libsumac-dev$libdir/libsumac.a"
    pack_library libsumac0 "Sums of gradients inside the network: a trainer's client for C" \
        'Connects to the daemon of the package sumac on the same host.'
    pack libsumac-dev "$architecture" libdevel "libsumac0 (= $version)" 'Sums of gradients inside the network: header and library' \
        'For programs in C, and in languages that call C, that use libsumac.'
fi
if [ -e "$bin_dir/libnccl_net_sumac.so" ]; then
    LIBDIR=$libdir DESTDIR=$stage/libnccl-net-sumac userspace/nccl/install.sh "$bin_dir"
    pack_library libnccl-net-sumac 'Sums of gradients inside the network: plugin of NCCL' \
        'NCCL loads it by NCCL_NET_PLUGIN=sumac. It connects to the daemon of the package sumac on the host.'
fi
