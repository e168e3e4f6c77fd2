# istio-aux. `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# `current` uses the cluster of KUBECONFIG; otherwise the one-node cluster that `make cluster-up` boots.
CLUSTER ?= one-node
# How long `make fuzz` runs each of its targets, in seconds.
FUZZ_FOR ?= 60
# What `make demo` runs: job or tfjob.
DEMO ?= job

CLUSTER_COMMAND := e2e/cluster/cluster
SCRIPTS := .ci/run bench/reviews bench/shim-cost charm/test deploy/install deploy/images/build deploy/images/sbom e2e/dockerfiles/build e2e/matrix examples/demo shim/build webhook/build tools/cargo-tool tools/ensure $(wildcard tools/*.sh) $(CLUSTER_COMMAND) $(wildcard e2e/cluster/lib/*.sh)

ifeq ($(CLUSTER),current)
  IN_CLUSTER :=
  UP :=
  SCENARIOS := --package e2e
else
  IN_CLUSTER := $(CLUSTER_COMMAND) run
  # The images were just built under the same tag.
  export RESTART := yes
  UP := cluster-up
  SCENARIOS := --package e2e --features one-node
endif

# qemu's user mode does not pass PIDFD_GET_INFO on to the kernel.
UNKNOWN_TO_QEMU := exit_code_is_known_after_somebody_else_reaped_where_the_kernel_tells

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "CLUSTER=current uses the cluster of KUBECONFIG. make demo takes DEMO=job or DEMO=tfjob."

.PHONY: demo
demo: install ## Show a Job that hangs in the mesh, and completes with istio-aux
	@$(IN_CLUSTER) examples/demo $(DEMO)

.PHONY: test
test: test-rust test-charm test-cluster ## Run every test

.PHONY: test-rust
test-rust: ## Run the Rust tests that need no cluster
	@tools/ensure rust
	cargo test --locked --workspace --exclude e2e --tests
	cargo check --locked --package aux-shim --target aarch64-unknown-linux-musl

.PHONY: test-charm
test-charm: ## Run the charm's tests that need no cluster
	@charm/test unit
	@charm/test alerts
	@charm/test charmcraft

.PHONY: test-aarch64
test-aarch64: ## Run the shim's unit tests for ARM, under qemu
	@tools/ensure rust aarch64
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64 \
	  cargo test --locked --package aux-shim --bins --target aarch64-unknown-linux-musl -- --skip $(UNKNOWN_TO_QEMU)

.PHONY: fuzz
fuzz: ## Throw random bytes at decisions and at inject, FUZZ_FOR seconds each
	@tools/ensure rust fuzz
	for target in decide inject; do \
	  mkdir -p webhook/fuzz/corpus/$$target; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir webhook/fuzz $$target webhook/fuzz/corpus/$$target inject/tests/pods examples -- \
	    -max_total_time=$(FUZZ_FOR) -max_len=20000 -timeout=10 -print_final_stats=1; \
	done

.PHONY: test-cluster
test-cluster: install ## Run the scenarios on a cluster
	@tools/ensure rust
	cargo build --locked $(SCENARIOS) --tests
	$(IN_CLUSTER) cargo test --locked $(SCENARIOS) --tests -- --test-threads 4
ifneq ($(CLUSTER),current)
	$(IN_CLUSTER) charm/test cluster
endif

.PHONY: test-matrix
test-matrix: ## Run the scenarios on a fresh one-node cluster for each way of installing (WAYS="helm policy")
	@tools/ensure rust images
	@e2e/matrix $(WAYS)

.PHONY: fmt
fmt: ## Format the code
	@tools/ensure rust
	cargo fmt
	@charm/test format

.PHONY: lint
lint: ## Check format, lints and scripts
	@tools/ensure rust lint
	cargo fmt --check
	cargo clippy --locked --workspace --all-targets --all-features
	@charm/test lint
	cargo deny --locked --all-features check bans licenses sources
	shellcheck $(SCRIPTS)
	python3 -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.argv[1:]]' deploy/images/oci_archive.py

.PHONY: bench
bench: install ## Measure on the one-node cluster: bench/README.md has what, how, and the last results
	@tools/ensure rust
	$(IN_CLUSTER) bench/shim-cost
	$(IN_CLUSTER) cargo run --locked --quiet --package e2e --bin bench -- pod-ends 30
	cargo build --locked --release --target x86_64-unknown-linux-musl --package probe
	$(IN_CLUSTER) cargo run --locked --quiet --package e2e --bin bench -- exit-to-post 200
	cargo bench --locked --package inject
	cargo build --locked --release --target x86_64-unknown-linux-musl --package bare
	@tools/ensure bench
	$(IN_CLUSTER) bench/reviews

.PHONY: images
images: ## Build target/images/webhook.tar and shim.tar, and load them into the one-node cluster when it is up
	@tools/ensure rust images
	@deploy/images/build

.PHONY: sbom
sbom: ## Write what each image is made of, in CycloneDX's JSON
	@tools/ensure rust sbom
	@deploy/images/sbom

.PHONY: install
install: $(UP) images ## Install istio-aux into the cluster
	@$(IN_CLUSTER) deploy/install

.PHONY: uninstall
uninstall: ## Remove istio-aux from the cluster
	@$(IN_CLUSTER) deploy/install remove

.PHONY: cluster-up
cluster-up: ## Boot the one-node cluster, and print its KUBECONFIG
	@$(CLUSTER_COMMAND) up

.PHONY: cluster-down
cluster-down: ## End the one-node cluster; what was built is kept
	@$(CLUSTER_COMMAND) down
