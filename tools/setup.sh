#!/usr/bin/env bash
# The only step that touches the system: installs what building, testing and the lab need on Debian 12
# or 13, whose packages have the same names.
#   tools/setup.sh --build    only what building needs, and numpy, for `make build` and `make quickstart`
#   tools/setup.sh            tool chain, lab tools, Python and PyTorch for the demo
#   tools/setup.sh --test     also what the tests start: tshark, Slurm, cargo-deb, schemas, promtool
#   tools/setup.sh --compare  also Open MPI, for `sumac-figures compare` and `make bench`
#   tools/setup.sh --trixie   also mmdebstrap, for `make build-trixie` and `make torch-trixie`
#   tools/setup.sh --arm64    also the cross compiler, for `make arm64` and tools/vm
#   tools/setup.sh --lint     also clippy and rustfmt, for `make lint`
#   tools/setup.sh --deny     also cargo-deny, for `make deny`
#   tools/setup.sh --fuzz     also cargo-bolero, for `make fuzz`
#   tools/setup.sh --book     also mdbook and mdbook-mermaid, for `make book`
#   tools/setup.sh --packages also cargo-deb, for `make package`
# A second run finds everything in place and does nothing.
set -euo pipefail

BPF_LINKER_VERSION=0.13.0
CARGO_DENY_VERSION=0.20.2
CARGO_BOLERO_VERSION=0.13.5
MDBOOK_VERSION=0.5.4
MDBOOK_MERMAID_VERSION=0.17.1
CARGO_DEB_VERSION=3.8.0
LLVM=22

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

build_packages=(
    build-essential ca-certificates pkg-config
    # Rust with `core` prebuilt for BPF (and for everything where there is no rustup), and the LLVM
    # that bpf-linker links against.
    rustc-web cargo-web rust-web-llvm rust-web-src libstd-rust-web-dev-bpf
    "llvm-$LLVM-dev" "libpolly-$LLVM-dev" zlib1g-dev libzstd-dev
    # xsk-rs builds libbpf and libxdp from source and generates bindings for them.
    "clang-$LLVM" "libclang-$LLVM-dev" libelf-dev m4
)
lab_packages=(iproute2 iputils-ping nftables iperf3 ethtool util-linux procps python3-numpy python3-sklearn python3-torch)
test_packages=(
    strace tshark valgrind linux-perf
    # The headers that the tests of sumac.torch build a device of their own with.
    libtorch-dev
    # The tests of tools/launchers: a Slurm cluster on this machine.
    slurmctld slurmd slurm-client munge jq shellcheck python3-venv mount
    # The Debian tree in which the packages are tested, and its disk for an emulated machine.
    mmdebstrap e2fsprogs
)
# rustup's own come with rust-toolchain.toml.
lint_packages=(rust-web-clippy rustfmt-web)
compare_packages=(openmpi-bin libopenmpi-dev python3-mpi4py python3-matplotlib)
arm64_packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
# Of the wheel.
package_packages=(python3-pip python3-setuptools python3-wheel)

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_missing() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    say "installing Debian packages: ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

install_bpf_linker() {
    local bin="${CARGO_HOME:-$HOME/.cargo}/bin/bpf-linker"
    if [ -x "$bin" ] || command -v bpf-linker >/dev/null; then return; fi
    say "building bpf-linker $BPF_LINKER_VERSION (half a minute)"
    # Without optimization: its work is LLVM's, and a program is linked half a second later.
    LLVM_PREFIX="/usr/lib/llvm-$LLVM" LLVM_SYS_221_PREFIX="/usr/lib/llvm-$LLVM" cargo install --quiet bpf-linker \
        --version "$BPF_LINKER_VERSION" --no-default-features --features "llvm-$LLVM" --debug \
        --config profile.dev.debug=false
}

# Into target/, from the package of Prometheus, for the tests of tools/monitoring: installed, the package
# would start a server.
install_promtool() {
    local target folder
    target=$(dirname "$0")/../target
    [ -x "$target/promtool" ] && return
    say "extracting promtool into $target"
    mkdir -p "$target"
    folder=$(mktemp -d)
    if download_package "$folder" prometheus; then
        dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" ./usr/bin/promtool
        mv "$folder/usr/bin/promtool" "$target/promtool"
    else
        say "Debian's mirror did not give the package: the rules of tools/monitoring will not be checked"
    fi
    rm -rf "$folder"
}

# Lists of packages that are older than the mirror name files that are gone.
download_package() {
    local get=(apt-get download -qq -o APT::Sandbox::User=root "$2")
    (cd "$1" && "${get[@]}") 2>/dev/null || { as_root apt-get update -qq && (cd "$1" && "${get[@]}"); }
}

# Into target/, for the tests of tools/launchers/kubernetes, which are skipped without.
install_schemas() {
    local root requirements folder
    root=$(dirname "$0")/..
    requirements=$root/tools/launchers/tests/requirements.txt
    folder=$root/target/schemas
    cmp -s "$requirements" "$folder/requirements.txt" && return
    say "installing the schemas of Kubernetes and Kubeflow into $folder"
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder"
    if "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$requirements"; then
        cp "$requirements" "$folder"
    else
        rm -rf "$folder"
        say "PyPI did not give the schemas: manifests will not be checked against them"
    fi
}

install_cargo_deny() {
    cargo deny --version 2>/dev/null | grep -qx "cargo-deny $CARGO_DENY_VERSION" && return
    say "building cargo-deny $CARGO_DENY_VERSION (a few minutes)"
    cargo install --quiet --locked cargo-deny --version "$CARGO_DENY_VERSION"
}

install_cargo_bolero() {
    cargo bolero --version 2>/dev/null | grep -qx "cargo-bolero $CARGO_BOLERO_VERSION" && return
    say "building cargo-bolero $CARGO_BOLERO_VERSION (a few minutes)"
    cargo install --quiet --locked cargo-bolero --version "$CARGO_BOLERO_VERSION" --no-default-features --features libfuzzer
}

install_mdbook() {
    mdbook --version 2>/dev/null | grep -qx "mdbook v$MDBOOK_VERSION" && return
    say "building mdbook $MDBOOK_VERSION (about a minute)"
    cargo install --quiet --locked mdbook --version "$MDBOOK_VERSION" --no-default-features --features search
}

# It brings the script that draws the diagrams, and writes it beside the pages.
install_mdbook_mermaid() {
    if ! mdbook-mermaid --version 2>/dev/null | grep -qx "mdbook-mermaid $MDBOOK_MERMAID_VERSION"; then
        say "building mdbook-mermaid $MDBOOK_MERMAID_VERSION (about a minute)"
        cargo install --quiet --locked mdbook-mermaid --version "$MDBOOK_MERMAID_VERSION"
    fi
    RUST_LOG=error mdbook-mermaid install "$(dirname "$0")/../docs"
}

# Without optimization it is built in half a minute; gzip and xz of the system compress.
install_cargo_deb() {
    cargo deb --version 2>/dev/null | grep -q "^cargo-deb $CARGO_DEB_VERSION" && return
    say "building cargo-deb $CARGO_DEB_VERSION (half a minute)"
    cargo install --quiet --locked cargo-deb --version "$CARGO_DEB_VERSION" --no-default-features --debug \
        --config profile.dev.debug=false
}

command -v apt-get >/dev/null ||
    die "this script knows Debian 12 and 13 only; install by hand: ${build_packages[*]}"
# Flags of a build of Sumac are not those of the tools that are built here.
unset RUSTFLAGS RUSTC_WORKSPACE_WRAPPER
missing=("${build_packages[@]}" python3-numpy)
[ "${1:-}" = --build ] || missing+=("${lab_packages[@]}")
install_missing "${missing[@]}"
install_bpf_linker
case "${1:-}" in
"" | --build) ;;
--test)
    install_missing "${test_packages[@]}" "${package_packages[@]}"
    install_schemas
    install_promtool
    install_cargo_deb
    ;;
--trixie) install_missing mmdebstrap ;;
--arm64) install_missing "${arm64_packages[@]}" ;;
--compare) install_missing "${compare_packages[@]}" ;;
--lint) cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1 || install_missing "${lint_packages[@]}" ;;
--deny) install_cargo_deny ;;
--fuzz) install_cargo_bolero ;;
--book)
    install_mdbook
    install_mdbook_mermaid
    ;;
--packages)
    install_missing "${package_packages[@]}"
    install_cargo_deb
    ;;
*) die "no option $1; see the head of this script" ;;
esac
say "everything is in place"
