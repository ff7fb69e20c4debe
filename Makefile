# Sumac's tasks. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# cargo installs bpf-linker there; rustup's cargo stays in front of Debian's.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

BIN := target/release
# Of the packages: with link-time optimization.
DIST := target/dist

.PHONY: help
help: ## list the tasks
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1\t/' | expand -t 12

.PHONY: setup
setup: ## install what is missing (Debian 12 or 13); the only task that touches the system
	@tools/setup.sh

.PHONY: build
build: ## build the product into target/release: the daemon's CLI and the aggregator
	@tools/setup.sh --build
	cargo build --release --locked --bins
	@ls -1 $(BIN)/sumac $(BIN)/sumac-agg

.PHONY: quickstart
quickstart: build ## the tutorial's first sum on this machine, over UDP on loopback, after building
	@tools/quickstart.sh $(BIN)

.PHONY: equipment
equipment: ## install what is missing, and build the product and its equipment: lab, demo, figures, vectors
	@tools/setup.sh --build
	@# Packages that building does not need, PyTorch the largest, are unpacked meanwhile.
	@tools/setup.sh & setup=$$!; echo cargo build --workspace --release --locked --bins; \
		cargo build --workspace --release --locked --bins || { wait $$setup; exit 1; }; wait $$setup
	@ls -1 $(BIN)/sumac $(BIN)/sumac-agg $(BIN)/sumac-lab $(BIN)/sumac-figures

.PHONY: install
install: ## build and install libsumac, its header and its pkg-config file (PREFIX=/usr/local LIBDIR= DESTDIR=)
	cargo build --release --locked -p sumac-c
	PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' INCLUDEDIR='$(INCLUDEDIR)' DESTDIR='$(DESTDIR)' userspace/c/install.sh $(BIN)

.PHONY: install-nccl
install-nccl: ## build and install the NCCL plugin libnccl-net-sumac.so (PREFIX=/usr/local LIBDIR= DESTDIR=)
	cargo build --release --locked -p sumac-nccl
	PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' userspace/nccl/install.sh $(BIN)

PACKAGED := -p sumac -p sumac-agg -p sumac-lab -p sumac-figures -p sumac-c -p sumac-nccl

.PHONY: package
package: ## the Debian packages into target/debian, and the wheel into target/wheels (installs cargo-deb first)
	@tools/setup.sh --packages
	cargo build --profile dist --locked $(PACKAGED)
	tools/packaging/package.sh $(DIST)

BASE ?=

.PHONY: container
container: package ## container images of Sumac and of a trainer, some minutes (needs buildah; BASE=a Debian 12, else mmdebstrap makes one)
	tools/launchers/container/build.sh $(if $(BASE),--base $(BASE))

.PHONY: demo
demo: equipment ## train on real data over a lab of 4 workers, without and with packet loss, and with PyTorch beside Gloo
	$(BIN)/sumac-lab demo

.PHONY: demo-p4
demo-p4: equipment ## train through the P4 program on the behavioural model of a switch, and through the XDP programs (1 minute)
	@p4=$$(tools/p4.sh); export PATH="$$p4$${p4:+:}$$PATH"; tools/p4/build.py --model && $(BIN)/sumac-lab demo --p4 --workers 2 --epochs 5

C ?=

.PHONY: check
check: ## one crate: formatting, clippy with warnings denied, its tests (C=sumac-wire)
	@test -n "$(C)" || { echo "name a crate: make check C=sumac-wire" >&2; exit 2; }
	cargo fmt --check --package $(C)
	cargo clippy --locked --package $(C) --all-targets -- -D warnings
	cargo test --locked --package $(C)

.PHONY: test-fast
test-fast: ## what needs no root, in at most five minutes: units, decisions, models, simulation, lints
	@tools/run_tests.py --fast

.PHONY: spec
spec: ## the mechanisms of the three papers, with the code and the tests that cite them
	@/usr/bin/python3 tools/lint/spec.py

.PHONY: nightly
nightly: ## what CI has no time for, with a table of outcomes in target/nightly.txt (SEEDS=10000 MINUTES=10 KILLS=50)
	@tools/nightly.sh

.PHONY: profile
profile: ## count instructions per packet with callgrind, beside the record (docs/tuning.md; a release build of the daemon)
	@tools/setup.sh --test
	tools/bench/counts.py --daemon

.PHONY: test
test: ## everything: units, simulation, model checking, eBPF programs, packages, end to end
	@tools/setup.sh --test
	@tools/run_tests.py

.PHONY: p4
p4: ## compile the P4 programs into target/p4 and print what they take of a Tofino (docs/p4.md: how to get the compilers)
	@p4=$$(tools/p4.sh); PATH="$$p4$${p4:+:}$$PATH" tools/p4/build.py --json docs/results/p4.json
	@tools/bench/chips.py

KILLS ?= 500
SEED ?= $(shell date +%s)

.PHONY: chaos
chaos: equipment ## kill random processes under a loop of allreduces, 500 in each mode (KILLS=N SEED=S)
	$(BIN)/sumac-lab chaos --mode static --kills $(KILLS) --seed $(SEED)
	$(BIN)/sumac-lab chaos --mode dynamic --kills $(KILLS) --seed $(SEED)
	$(BIN)/sumac-lab chaos --mode direct --kills $(KILLS) --seed $(SEED)

MINUTES ?= 60

.PHONY: fuzz
fuzz: ## fuzz every parser with libFuzzer, MINUTES=60 divided over the targets; new inputs go into the corpora
	@tools/setup.sh --fuzz
	tools/fuzz.sh $(MINUTES)

.PHONY: miri
miri: ## run the units of leases and packets under Miri (needs rustup's nightly with its component miri)
	tools/miri.sh

PYTHON ?= /usr/bin/python3

.PHONY: torch-tests
torch-tests: setup ## run PyTorch's own distributed test cases with the backend sumac (3 minutes; PYTHON=FILE of another PyTorch)
	cargo build --locked -p sumac -p sumac-agg
	SUMAC_BIN_DIR=$(CURDIR)/target/debug $(PYTHON) -B tools/torch-tests/run.py

STACKS ?= target/torch-stacks

.PHONY: torch-stacks
torch-stacks: setup ## run docs/frameworks.md, the tests of sumac.torch and PyTorch's own with PyTorch and frameworks from PyPI (6 GB in STACKS=DIR)
	cargo build --locked -p sumac -p sumac-agg -p sumac-lab -p sumac-figures
	SUMAC_BIN_DIR=$(CURDIR)/target/debug tools/docs/frameworks.py $(STACKS)
	@[ ! -e $(STACKS)/complete ] || SUMAC_BIN_DIR=$(CURDIR)/target/debug $(STACKS)/bin/python -B -m unittest \
		discover -t userspace/python -s userspace/python/tests -p 'test_torch*.py'
	@[ ! -e $(STACKS)/complete ] || SUMAC_BIN_DIR=$(CURDIR)/target/debug $(STACKS)/bin/python -B tools/torch-tests/run.py

TORCH_ROOT ?= target/trixie
# setuptools: upstream's test cases import it. g++ and the headers: the tests' device is built.
TORCH_PACKAGES := python3-torch,python3-numpy,python3-setuptools,python3-sklearn,g++,libtorch-dev

.PHONY: torch-trixie
torch-trixie: ## the same, and the Python client's tests, with Debian 13's PyTorch (as root; a root of 1.6 GB in TORCH_ROOT=DIR)
	@tools/setup.sh --trixie
	cargo build --locked -p sumac -p sumac-agg
	SUMAC_BIN_DIR=$(CURDIR)/target/debug tools/trixie-root.sh --packages $(TORCH_PACKAGES) $(TORCH_ROOT) sh -c \
		'python3 -B -m unittest discover -t userspace/python -s userspace/python/tests && python3 -B tools/torch-tests/run.py'

BUILD_ROOT ?= target/trixie-build
# A folder of the root: its programs are not the host's.
BUILT := /var/tmp/built

.PHONY: build-trixie
build-trixie: ## set-up, build and first sum in a bare Debian 13 (as root; a root of 3 GB in BUILD_ROOT=DIR is made anew)
	@tools/setup.sh --trixie
	tools/trixie-root.sh --new $(BUILD_ROOT) sh -c \
		'tools/setup.sh --build && CARGO_TARGET_DIR=$(BUILT) make build BIN=$(BUILT)/release'
	unshare --net sh -c 'ip link set lo up && exec "$$@"' sh \
		tools/trixie-root.sh $(BUILD_ROOT) tools/quickstart.sh $(BUILT)/release

.PHONY: bench
bench: equipment ## measure, and write docs/results.md's numbers as JSON (long; installs what it compares with)
	@tools/setup.sh --compare
	tools/bench.sh

KERNEL ?= 7.2
SUITE ?=

.PHONY: test-vm
test-vm: equipment ## suites on a kernel of Debian's archive, emulated (KERNEL=7.2 SUITE=NAME, docs/labs.md; minutes)
	tools/vm/run.py --kernel '$(KERNEL)' $(if $(SUITE),--suite '$(SUITE)')

.PHONY: arm64
arm64: setup ## cross-build the programs for arm64 into target/aarch64-unknown-linux-gnu/release
	@tools/setup.sh --arm64
	tools/vm/cross.py build --release --locked -p sumac -p sumac-agg -p sumac-lab -p sumac-figures

.PHONY: package-arm64
package-arm64: build ## Debian packages for arm64 into target/debian
	@tools/setup.sh --arm64
	@tools/setup.sh --packages
	tools/vm/cross.py build --profile dist --locked $(PACKAGED)
	tools/packaging/package.sh target/aarch64-unknown-linux-gnu/dist --arm64 $(BIN)

.PHONY: test-arm64
test-arm64: arm64 ## the same suites, with these programs, on an emulated arm64 machine (KERNEL=6.12 SUITE=labs|programs|units)
	tools/vm/run.py --architecture arm64 --kernel '$(KERNEL)' $(if $(SUITE),--suite '$(SUITE)')

.PHONY: format
format: ## check the formatting of all crates
	@tools/setup.sh --lint
	cargo fmt --all --check
	cargo fmt --check --manifest-path xdp-prog/Cargo.toml
	cargo fmt --check --manifest-path nic-agg/ebpf/Cargo.toml
	cargo fmt --check --manifest-path tools/cable-prog/Cargo.toml

.PHONY: lint
lint: format ## formatting, and clippy with warnings denied
	cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: deny
deny: ## licences, sources and advisories of dependencies (builds cargo-deny first: some minutes)
	@tools/setup.sh --deny
	tools/deny.sh

.PHONY: doc
doc: build ## man pages and completions into target/doc-cli
	@mkdir -p target/doc-cli
	$(BIN)/sumac man target/doc-cli
	$(BIN)/sumac-agg man target/doc-cli

.PHONY: reference
reference: equipment ## write docs/reference, the pages that are generated from the code
	SUMAC_BIN_DIR=$(BIN) /usr/bin/python3 tools/docs/reference.py

.PHONY: book
book: ## render docs/ as a site into target/book (builds mdbook first: two minutes)
	@tools/setup.sh --book
	mdbook build docs

.PHONY: clean
clean: ## remove what was built (nothing outside this folder)
	cargo clean
	rm -rf xdp-prog/target nic-agg/ebpf/target tools/cable-prog/target
