#!/usr/bin/env bash
# Builds both images with buildah, and runs a command in each.
#   tools/launchers/container/build.sh [--base IMAGE] [--packages DIR] [--tag TAG]
# --base: a Debian 12; without it one is made by mmdebstrap, from Debian's mirror alone. --packages: the
# folder that `make package` fills (target). --tag: of localhost/sumac and localhost/sumac-trainer (latest).
# Needs buildah, and mmdebstrap without --base.
set -euo pipefail
cd "$(dirname "$0")/../../.."

base='' packages=target tag=latest
while [ $# -gt 0 ]; do
    case $1 in
        --base) base=$2; shift 2 ;;
        --packages) packages=$2; shift 2 ;;
        --tag) tag=$2; shift 2 ;;
        *) echo "build.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
needed=(buildah)
[ -n "$base" ] || needed+=(mmdebstrap)
for program in "${needed[@]}"; do
    command -v "$program" >/dev/null || { echo "build.sh: $program is not installed: apt-get install $program" >&2; exit 1; }
done
compgen -G "$packages/debian/sumac_*.deb" >/dev/null || { echo "build.sh: no packages in $packages/debian: make package" >&2; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# chroot works inside of containers and virtual machines, where others need a runtime and cgroups.
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}
if [ -z "$base" ]; then
    base=localhost/sumac-base
    mmdebstrap --quiet --variant=apt bookworm "$scratch/root.tar"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$scratch/root.tar" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
fi

build() {
    buildah build --quiet --build-arg BASE="$base" --build-context torchrun=tools/launchers/torchrun \
        --file "tools/launchers/container/$2" --tag "localhost/$1:$tag" "$packages" >/dev/null
}

# Runs a command in an image.
try() {
    local container
    container=$(buildah from --pull-never "localhost/$1:$tag")
    shift
    buildah run "$container" -- "$@"
    buildah rm "$container" >/dev/null
}

build sumac Containerfile
try sumac sumac --version
try sumac sumac-agg --version
build sumac-trainer Containerfile.trainer
try sumac-trainer python3 -c 'import os, sumac.torch, torch; print("torch", torch.__version__, "with sumac.torch, user", os.getuid())'
