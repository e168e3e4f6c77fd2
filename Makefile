# istio-aux. `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# `current` uses the cluster of KUBECONFIG; otherwise the one-node cluster that `make cluster-up` boots.
CLUSTER ?= one-node
# How long `make fuzz` runs each of its targets, in seconds.
FUZZ_FOR ?= 60
# How many Jobs `make soak` runs.
PODS ?= 1000
# What `make demo` runs: job or tfjob; katib or argo with CLUSTER=current.
DEMO ?= job

CLUSTER_COMMAND := hack/cluster/cluster
SCRIPTS := .ci/run bench/reviews charm/get-images.sh charm/test deploy/install deploy/images/build deploy/images/pack deploy/images/root deploy/images/sbom hack/matrix hack/install-node examples/demo node/build shim/build $(wildcard shim/tests/kernels/*) webhook/build hack/cargo-tool hack/ensure hack/zig-ar hack/zig-cc deploy/release $(wildcard hack/*.sh) $(CLUSTER_COMMAND) $(wildcard hack/cluster/lib/*.sh)

ifeq ($(CLUSTER),current)
  IN_CLUSTER :=
  UP :=
  # That cluster has what it has.
  ADD :=
  SCENARIOS := --package e2e --features kubeflow
else
  IN_CLUSTER := $(CLUSTER_COMMAND) run
  # The images were just built under the same tag.
  export RESTART := yes
  # The name under which they are loaded.
  export REGISTRY := registry.invalid/istio-aux
  UP := cluster-up
  ADD = $(CLUSTER_COMMAND) add $(1)
  SCENARIOS := --package e2e --features one-node,kubeflow
  export PYTHON_IMAGE := docker.io/istio-aux-cluster/python:1
endif

# Rust's own linker knows every architecture; zig is the C compiler of mimalloc and ring.
FOR_AARCH64 := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64 \
  CC_aarch64_unknown_linux_musl=$(CURDIR)/hack/zig-cc AR_aarch64_unknown_linux_musl=$(CURDIR)/hack/zig-ar
# qemu's user mode does not pass PIDFD_GET_INFO on to the kernel.
UNKNOWN_TO_QEMU := end_and_reaping_are_reported_once_each

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "CLUSTER=current uses the cluster of KUBECONFIG. make demo takes DEMO=job or tfjob; katib or argo too with CLUSTER=current."

# What a demo needs beside Istio. No registry serves Katib and Argo Workflows as Go modules, so the one-node cluster lacks them.
COMPONENT_OF_tfjob := training-operator

.PHONY: demo
demo: export PROFILE := demo
demo: $(if $(filter $(ONLY_ON_A_KUBEFLOW_CLUSTER),$(DEMO)),kubeflow-cluster) install ## Show a Job that hangs in the mesh, and completes with istio-aux
	@$(if $(COMPONENT_OF_$(DEMO)),$(call ADD,$(COMPONENT_OF_$(DEMO))))
	@$(IN_CLUSTER) examples/demo $(DEMO)

.PHONY: test
test: test-rust test-charm test-cluster ## Run every test

.PHONY: test-rust
test-rust: ## Run the Rust tests that need no cluster
	@hack/ensure rust processes
	cargo test --locked --workspace --exclude e2e --tests --features aux-shim/privileged
	cargo check --locked --package aux-shim --target aarch64-unknown-linux-musl

.PHONY: test-charm
test-charm: ## Run the charm's tests that need no cluster
	@charm/test unit
	@charm/test alerts
	@charm/test charmcraft

.PHONY: test-aarch64
test-aarch64: ## Run the unit tests, and the webhook's command line, for ARM under qemu
	@hack/ensure rust aarch64
	$(FOR_AARCH64) cargo test --locked --package aux-shim --bins --target aarch64-unknown-linux-musl -- --skip $(UNKNOWN_TO_QEMU)
	$(FOR_AARCH64) cargo test --locked --package contract --package inject --package webhook --package cli --lib --target aarch64-unknown-linux-musl
	$(FOR_AARCH64) cargo run --locked --quiet --package cli --target aarch64-unknown-linux-musl -- --version
	$(FOR_AARCH64) cargo run --locked --quiet --package cli --target aarch64-unknown-linux-musl -- check --help >/dev/null

.PHONY: test-kernels
test-kernels: ## Run the shim's tests under Debian's kernel, in qemu (KERNEL=linux-image-6.12-amd64 for another)
	@hack/ensure rust processes kernels
	@shim/tests/kernels/run

.PHONY: fuzz
fuzz: ## Throw random bytes at decisions and at inject, FUZZ_FOR seconds each
	@hack/ensure rust fuzz
	for target in decide inject; do \
	  mkdir -p inject/fuzz/corpus/$$target; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir inject/fuzz $$target inject/fuzz/corpus/$$target inject/tests/pods examples -- \
	    -max_total_time=$(FUZZ_FOR) -max_len=1048576 -timeout=10 -print_final_stats=1; \
	done

.PHONY: test-cluster
test-cluster: install ## Run the scenarios on a cluster
	@hack/ensure rust
	@$(call ADD,training-operator python)
	cargo build --locked $(SCENARIOS) --tests
	$(IN_CLUSTER) cargo test --locked $(SCENARIOS) --test scenarios -- --test-threads 4
	$(IN_CLUSTER) cargo test --locked $(SCENARIOS) --test exclusive -- --test-threads 1
ifneq ($(CLUSTER),current)
	$(IN_CLUSTER) cargo test --locked $(SCENARIOS) --lib --bins --test local --test rendered --test images --test cluster_command
	$(IN_CLUSTER) charm/test cluster
endif

.PHONY: test-kubeflow
test-kubeflow: install ## Run the scenarios with Jobs and Kubeflow's components; lists those that the cluster does not have as not run
	@hack/ensure rust
	@$(call ADD,training-operator python)
	$(IN_CLUSTER) cargo test --locked $(SCENARIOS) --test kubeflow -- --test-threads 4

.PHONY: test-node
test-node: export NODE_PROXY := yes
test-node: install ## Run the scenarios with proxies beside pods (experimental: docs/node.md)
	@hack/ensure rust images
	@$(call ADD,node)
	@deploy/images/build node
	@$(IN_CLUSTER) hack/install-node
	cargo build --locked --package e2e --features node --test node
	$(IN_CLUSTER) cargo test --locked --package e2e --features node --test node -- --test-threads 1

.PHONY: test-node-load
test-node-load: test-node ## Let 200 such pods come and go while the agent is killed and containerd restarted
	$(IN_CLUSTER) cargo test --locked --package e2e --features node,soak --test soak node:: -- --nocapture

.PHONY: soak
soak: install ## Run PODS Jobs while parts of the cluster are restarted again and again
	@hack/ensure rust
	PODS=$(PODS) $(IN_CLUSTER) cargo test --locked --package e2e --features soak --test soak -- --nocapture

.PHONY: test-matrix
test-matrix: ## Run the scenarios for each way of installing, and what takes minutes and changes seldom (WAYS="helm ipv6 release")
	@hack/ensure rust images aarch64 sbom
	@hack/matrix $(WAYS)

.PHONY: fmt
fmt: ## Format the code
	@hack/ensure rust
	cargo fmt
	@charm/test format

.PHONY: lint
lint: ## Check format, lints and scripts
	@hack/ensure rust lint
	cargo fmt --check
	cargo clippy --locked --workspace --all-targets --all-features
	@charm/test lint
	cargo deny --locked --all-features check bans licenses sources
	shellcheck $(SCRIPTS)

.PHONY: docs
docs: ## Build the documentation as a site, target/site/index.html
	@hack/ensure rust docs
	rm -rf target/book && mkdir -p target/book
	git ls-files -z '*.md' '*.svg' | xargs -0 cp --parents --target-directory target/book
	sed 's|](|](docs/|; s|](docs/\.\./|](|' docs/SUMMARY.md > target/book/SUMMARY.md
	mdbook build docs

.PHONY: bench
# The proxy beside the pod is measured too.
bench: export NODE_PROXY := yes
bench: install ## Measure on the one-node cluster: bench/README.md has what, how, and the last results
	@hack/ensure rust images bench
	@$(call ADD,node)
	@deploy/images/build node
	@$(IN_CLUSTER) hack/install-node
	$(IN_CLUSTER) cargo run --locked --quiet --package bench -- pod-ends 30
	cargo run --locked --quiet --package bench -- report
	cargo build --locked --release --target x86_64-unknown-linux-musl --target-dir target --package probe
	$(IN_CLUSTER) cargo run --locked --quiet --package bench -- exit-to-post 40
	$(IN_CLUSTER) bench/reviews
	cargo bench --locked --package inject

.PHONY: images
images: ## Build target/images/webhook.tar and shim.tar (ARCHS=amd64,arm64 for both) by their Dockerfiles, and load them into the one-node cluster
	@hack/ensure rust images $(if $(ARCHS),aarch64)
	@deploy/images/build

.PHONY: sbom
sbom: ## Write what each image is made of, in CycloneDX's JSON
	@hack/ensure rust sbom
	@deploy/images/sbom

.PHONY: release
release: ## Build a release and write its files into target/release: VERSION=, REGISTRY=, HOMEPAGE=
	@deploy/release "$(VERSION)" "$(REGISTRY)" "$(HOMEPAGE)"

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
