# istio-aux. `make help` lists the targets.
.DEFAULT_GOAL := help
# Targets build images and boot a cluster side by side by themselves.
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# `current` uses the cluster of KUBECONFIG, whose context E2E_CONTEXT names; otherwise the one-node cluster that `make cluster-up` boots.
CLUSTER ?= one-node
# What `make install` installs besides: node, tenancy, and components of the one-node cluster such as training-operator.
WITH ?=
# The scenario that `make scenario` runs: a part of its name. Some shells have a variable of this name in the environment.
NAME =
# How long `make fuzz` runs each of its targets, in seconds.
FUZZ_FOR ?= 60
# How many Jobs `make soak` runs.
PODS ?= 1000
# How the pods of `make conformance` are in the mesh: its page is written where all columns and tests ran.
ALL_COLUMNS := none native shim sidecar node
COLUMNS = $(ALL_COLUMNS)
# What `make demo` runs: job or tfjob; katib or argo with CLUSTER=current.
DEMO ?= job

CLUSTER_COMMAND := hack/cluster/cluster
# Those with a shell's name on their first line, and the files that they read.
SCRIPTS = $(shell git ls-files -z | xargs -0 awk 'FNR == 1 && (/^\#!.*sh$$/ || FILENAME ~ /\.sh$$/) { print FILENAME } { nextfile }')

ifeq ($(CLUSTER),current)
  IN_CLUSTER :=
  UP := named-context named-registry
  # Only the one-node cluster has components to add.
  ADD := :
  FEATURES := kubeflow
  # That cluster has the images and the node agent of its own.
  INSTALL_NODE :=
  INSTALL_AND_TEST_KUBERNETES := install
else
  IN_CLUSTER := $(CLUSTER_COMMAND) run
  # The name under which the images are loaded.
  export REGISTRY := registry.invalid/istio-aux
  UP := boot
  ADD = $(CLUSTER_COMMAND) add $(1)
  FEATURES := one-node,kubeflow,node
  INSTALL_AND_TEST_KUBERNETES := test-kubernetes
  INSTALL_NODE = deploy/images/build node && $(IN_CLUSTER) hack/install-node
  export PYTHON_IMAGE := docker.io/istio-aux-cluster/python:1
  export CLIENTS_IMAGE := docker.io/istio-aux-cluster/clients:1
  export SPARK_IMAGE := docker.io/istio-aux-cluster/spark:1
endif

# Of WITH: what the one-node cluster builds, and what the chart switches on.
COMPONENTS = $(filter-out tenancy,$(WITH))
SWITCHED_ON = $(if $(filter node,$(WITH)),--set=nodeProxy.enabled=true) $(if $(filter tenancy,$(WITH)),--set=tenancy.enabled=true)

SCENARIOS = cargo test --locked --package e2e --features $(FEATURES)
# Where names choose the tests, to run none is a failure.
SOME := hack/some-tests
# Run beside the other scenarios. Those of the API server need the one-node cluster.
BESIDE = status=0; $(IN_CLUSTER) $(SCENARIOS) --test kubeflow -- --test-threads 2 || status=$$?; \
  $(if $(filter current,$(CLUSTER)),,$(IN_CLUSTER) $(SCENARIOS) --test api -- --test-threads 1 || status=$$?;) exit $$status

# Rust's own linker knows every architecture; zig is the C compiler of mimalloc and ring.
FOR_AARCH64 := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64 \
  CC_aarch64_unknown_linux_musl=$(CURDIR)/hack/zig-cc AR_aarch64_unknown_linux_musl=$(CURDIR)/hack/zig-ar
# qemu's user mode does not pass PIDFD_GET_INFO on to the kernel.
UNKNOWN_TO_QEMU := code_is_reported_after_the_reaping

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "CLUSTER=current uses the cluster of KUBECONFIG. make demo takes DEMO=job or tfjob; katib or argo too with CLUSTER=current."

# What a demo needs beside Istio. Katib and Argo Workflows are not built for the one-node cluster: no registry serves all of their source.
COMPONENT_OF_tfjob := training-operator

ifeq ($(CLUSTER) $(filter katib argo,$(DEMO)),one-node $(DEMO))
  $(error DEMO=$(DEMO) needs a cluster that has it: make demo DEMO=$(DEMO) CLUSTER=current E2E_CONTEXT=NAME REGISTRY=…)
endif

.PHONY: demo
demo: export PROFILE := demo
demo: install ## Show a Job that hangs in the mesh, and completes with istio-aux
	@$(if $(COMPONENT_OF_$(DEMO)),$(call ADD,$(COMPONENT_OF_$(DEMO))))
	@$(IN_CLUSTER) examples/demo $(DEMO)

# Nothing is deleted or installed in a cluster that the caller has not named.
.PHONY: named-context
named-context:
	@context=$$(kubectl config current-context); \
	if [ "$(E2E_CONTEXT)" != "$$context" ]; then \
	  echo "make $(MAKECMDGOALS): KUBECONFIG's context is '$$context', in which this installs istio-aux, creates and deletes namespaces," >&2; \
	  echo "  and for some tests restarts and removes istio-aux; next: add E2E_CONTEXT=$$context if that is meant" >&2; \
	  exit 1; \
	fi; \
	echo "using context '$$context' of KUBECONFIG"

.PHONY: named-registry
named-registry:
	@if [ -z "$(REGISTRY)" ]; then \
	  echo "make $(MAKECMDGOALS): it needs a registry from which that cluster pulls the images; next: add REGISTRY=registry.example/istio-aux" >&2; \
	  exit 1; \
	fi

# The cluster boots, and Kubernetes' tests mostly wait, while the tests run that need no cluster.
.PHONY: test
test: ## Run the gate: all tests of Rust, the charts and the charm, and the scenarios
	@. hack/say.sh; trap end_behind EXIT; NICENESS=0 start_behind target/log/install.log $(MAKE) $(INSTALL_AND_TEST_KUBERNETES); \
	  $(MAKE) test-rust test-charts test-charm; finish_behind "istio-aux on its cluster, and Kubernetes' tests"; cat target/log/install.log; trap - EXIT
	@$(MAKE) scenarios-on-cluster

.PHONY: test-all
test-all: ## Run every test there is, at one commit, and write the table of docs/compatibility.md (hours)
	@hack/test-all

.PHONY: test-rust
test-rust: ## Run the Rust tests that need no cluster
	@hack/ensure rust processes
	cargo test --locked --workspace --exclude e2e --tests --features aux-shim/privileged
	cargo check --locked --package aux-shim --target aarch64-unknown-linux-musl

.PHONY: test-charts
test-charts: ## Run the charts' unit tests, and check their objects by Kubernetes' schemas and kube-score
	@hack/charts/test

.PHONY: test-charm
test-charm: ## Run the charm's tests that need no cluster
	@charm/test unit
	@charm/test alerts
	@charm/test charmcraft

.PHONY: test-aarch64
test-aarch64: ## Run the unit tests, and the webhook's command line, for ARM under qemu
	@hack/ensure rust aarch64 emulation
	$(FOR_AARCH64) cargo test --locked --package aux-shim --bins --target aarch64-unknown-linux-musl -- --skip $(UNKNOWN_TO_QEMU)
	$(FOR_AARCH64) cargo test --locked --package contract --package inject --package webhook --package cli --lib --target aarch64-unknown-linux-musl
	$(FOR_AARCH64) cargo run --locked --quiet --package cli --target aarch64-unknown-linux-musl -- --version
	$(FOR_AARCH64) cargo run --locked --quiet --package cli --target aarch64-unknown-linux-musl -- check --help >/dev/null

# Linking for macOS needs Apple's SDK.
.PHONY: check-cli-targets
check-cli-targets: ## Build the command line for Windows, and check that it compiles for macOS
	@hack/ensure rust zig windows
	rustup target add x86_64-pc-windows-gnu aarch64-apple-darwin
	cargo build --locked --package cli --target x86_64-pc-windows-gnu
	CC_aarch64_apple_darwin=$(CURDIR)/hack/zig-cc AR_aarch64_apple_darwin=$(CURDIR)/hack/zig-ar \
	  cargo check --locked --package cli --target aarch64-apple-darwin

.PHONY: test-kernels
test-kernels: ## Run the shim's tests under Debian's kernel, in qemu (KERNEL=linux-image-6.12-amd64 for another)
	@hack/ensure rust processes kernels
	@shim/tests/kernels/run

.PHONY: fuzz
fuzz: ## Fuzz decisions and inject, FUZZ_FOR seconds each
	@hack/ensure rust fuzz
	for target in decide inject; do \
	  mkdir -p inject/fuzz/corpus/$$target; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir inject/fuzz $$target inject/fuzz/corpus/$$target inject/tests/pods examples -- \
	    -max_total_time=$(FUZZ_FOR) -max_len=1048576 -timeout=10 -print_final_stats=1; \
	done

.PHONY: mutants
mutants: ## Change the decisions' code one place at a time, and list what no test fails for (.cargo/mutants.toml; hours)
	@hack/ensure rust mutants
	mkdir -p target/mutants
	status=0; \
	cargo mutants --output target/mutants/others --package aux-shim --package node --package webhook || status=$$?; \
	cargo mutants --output target/mutants/inject --package inject --test-package inject,webhook,cli || status=$$?; \
	exit $$status

# Much of this is waiting. So what can run beside something else does, and its log is printed after it.
.PHONY: test-cluster
test-cluster: install scenarios-on-cluster ## Run the scenarios on a cluster; lists those as not run whose component it lacks

.PHONY: scenarios-on-cluster
scenarios-on-cluster:
	@hack/ensure rust
	@. hack/say.sh; trap end_behind EXIT; \
	  start_behind target/log/scenarios-build.log cargo build --locked --package e2e --features $(FEATURES) --tests; \
	  $(call ADD,training-operator python pages); finish_behind "building the scenarios"; trap - EXIT
ifneq ($(CLUSTER),current)
	$(IN_CLUSTER) $(SCENARIOS) --lib --bins --test local --test rendered --test images
endif
	@. hack/say.sh; trap end_behind EXIT; \
	  start_behind target/log/beside.log bash -c '$(BESIDE)'; \
	  $(IN_CLUSTER) $(SCENARIOS) --test scenarios -- --test-threads 4; \
	  finish_behind "scenarios of Kubeflow's components and the API server"; cat target/log/beside.log; trap - EXIT
	$(IN_CLUSTER) $(SCENARIOS) --test exclusive -- --test-threads 1
ifneq ($(CLUSTER),current)
	$(IN_CLUSTER) $(SCENARIOS) --test cluster_command --test pages
	@. hack/say.sh; trap end_behind EXIT; start_behind target/log/node-image.log deploy/images/build node; \
	  $(IN_CLUSTER) charm/test cluster; finish_behind "image of the node agent"; trap - EXIT
	@$(call ADD,node)
	@$(INSTALL_NODE)
	for name in job_beside_its_proxy confined; do $(IN_CLUSTER) $(SOME) $(SCENARIOS) --test node -- --test-threads 1 "$$name"; done
endif

.PHONY: test-kubeflow
test-kubeflow: install ## Run the scenarios with Kubeflow's components only: Argo, Katib, JobSet, Trainer and profiles need CLUSTER=current
	@hack/ensure rust
	@$(call ADD,training-operator python)
	$(IN_CLUSTER) $(SCENARIOS) --test kubeflow -- --test-threads 4

.PHONY: test-clients
test-clients: install ## Run Airflow, Dagster, Dask, Ray and Spark in the mesh, with istio-aux and without
	@hack/ensure rust
	@$(call ADD,clients spark)
	$(IN_CLUSTER) $(SOME) $(SCENARIOS),clients --test scenarios -- --test-threads 2 airflow:: dagster:: dask:: ray:: spark::

.PHONY: scenario
scenario: export PROFILE := demo
scenario: install ## Run the scenarios whose name has NAME= in it; KEEP=1 leaves their namespaces
	@hack/ensure rust
	$(IN_CLUSTER) $(SOME) $(SCENARIOS) --test scenarios -- --test-threads 4 $(NAME) || \
	  { $(IN_CLUSTER) kubectl -n istio-aux logs deployment/istio-aux --tail=40; exit 1; }

.PHONY: test-node
test-node: override WITH += node
test-node: install ## Run the scenarios with proxies beside pods (docs/node.md), with OPTIONS of the test runner
	@hack/ensure rust
	@$(call ADD,training-operator python earlier-proxy)
	$(IN_CLUSTER) $(SOME) cargo test --locked --package e2e --features node --test node -- --test-threads 1 $(OPTIONS)

.PHONY: test-two-nodes
test-two-nodes: override WITH += node second-node
test-two-nodes: install ## Run the scenarios with proxies beside pods of two nodes: a second kubelet in namespaces of this machine
	@hack/ensure rust
	$(IN_CLUSTER) cargo test --locked --package e2e --features node --test two_nodes -- --test-threads 1

.PHONY: test-network-policies
test-network-policies: override WITH += node
test-network-policies: install ## Run the scenarios with NetworkPolicies, which kube-router enforces
	@hack/ensure rust
	@$(call ADD,kube-router)
	$(IN_CLUSTER) cargo test --locked --package e2e --features node --test network_policies -- --test-threads 1

.PHONY: test-node-load
test-node-load: test-node ## Create and delete 200 such pods while the agent is killed and containerd restarted, and 200 at once
	@$(call ADD,istio-suites)
	$(IN_CLUSTER) cargo test --locked --package e2e --features node,soak --test soak node:: -- --nocapture --test-threads 1

.PHONY: soak
soak: install ## Run PODS Jobs while parts of the cluster are restarted again and again
	@hack/ensure rust
	PODS=$(PODS) $(IN_CLUSTER) cargo test --locked --package e2e --features soak --test soak -- --nocapture

.PHONY: conformance
conformance: override WITH += $(if $(filter node,$(COLUMNS)),node)
conformance: install ## Run Kubernetes' own e2e tests with and without a mesh, and write docs/conformance.md (COLUMNS="none shim", FOCUS=)
	@hack/ensure rust
	@$(call ADD,kubernetes-e2e)
	@$(IN_CLUSTER) hack/conformance $(COLUMNS)
	@$(if $(FOCUS)$(filter-out $(COLUMNS),$(ALL_COLUMNS)),,cargo run --locked --quiet --package e2e --bin conformance conformance)

# Those left out wait for four minutes each, and are about probes and updates: make conformance has them.
.PHONY: test-kubernetes
test-kubernetes: install ## Run Kubernetes' own tests of Jobs and pods with istio-aux: what passes by docs/conformance.md must pass
	@$(call ADD,kubernetes-e2e)
	@PASS=known WITHOUT='Probing container|issue 500 podspec updates' $(IN_CLUSTER) hack/conformance shim

.PHONY: istio-suites
istio-suites: override WITH += node
istio-suites: install ## Run Istio's own integration tests with its sidecar and beside the pod, and write docs/conformance.md (PILOT='^TestX$$' SECURITY= TELEMETRY= for some)
	@hack/ensure rust
	@$(call ADD,istio-suites)
	@$(IN_CLUSTER) hack/istio-suites sidecar node
	@$(if $(filter-out undefined,$(origin PILOT) $(origin SECURITY) $(origin TELEMETRY)),,cargo run --locked --quiet --package e2e --bin conformance istio-suites)

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
	hack/version check

.PHONY: docs
docs: ## Build the documentation as a site, target/site/index.html
	@hack/ensure rust docs
	rm -rf target/book && mkdir -p target/book
	git ls-files -z '*.md' '*.svg' | xargs -0 cp --parents --target-directory target/book
	sed 's|](|](docs/|; s|](docs/\.\./|](|' docs/SUMMARY.md > target/book/SUMMARY.md
	PATH="$${CARGO_HOME:-$$HOME/.cargo}/bin:$$PATH" mdbook build docs

.PHONY: bench
# The proxy beside the pod is measured too.
bench: override WITH += node
bench: install ## Measure on the one-node cluster: bench/README.md has what, how, and the last results
	@hack/ensure rust images bench
	$(IN_CLUSTER) cargo run --locked --quiet --package bench -- pod-ends 30
	$(IN_CLUSTER) cargo run --locked --quiet --package bench -- at-once 50 3 no-mesh istio-native-sidecar istio-aux-native istio-aux-node
	$(IN_CLUSTER) cargo run --locked --quiet --package bench -- starts-again 15 no-mesh istio-aux-native istio-aux-node
	cargo run --locked --quiet --package bench -- report
	cargo build --locked --release --target x86_64-unknown-linux-musl --target-dir target --package probe
	$(IN_CLUSTER) cargo run --locked --quiet --package bench -- exit-to-post 40
	$(IN_CLUSTER) bench/reviews
	cargo bench --locked --package inject

.PHONY: manifests
manifests: ## Render deploy/overlays and the charm's objects from the chart; needs helm
	@mkdir -p target
	deploy/render >target/rendered.yaml && mv target/rendered.yaml deploy/overlays/self-signed/istio-aux.yaml
	deploy/render --set=tenancy.enabled=true --show-only=templates/tenancy.yaml >target/rendered.yaml && mv target/rendered.yaml deploy/overlays/tenancy/tenancy.yaml
	NAMESPACE=juju-model deploy/render --set=fullnameOverride=juju-application-webhook --set=tenancy.enabled=true >target/rendered.yaml && \
	  mv target/rendered.yaml charm/src/cluster/chart.yaml
	deploy/render charm-dashboard >charm/src/grafana_dashboards/istio-aux.json

.PHONY: images
images: ## Build target/images/webhook.tar and shim.tar, or IMAGES="webhook shim node" (ARCHS=amd64,arm64 for both), and load them into the one-node cluster
	@hack/ensure rust images $(if $(ARCHS),aarch64)
	@deploy/images/build $(IMAGES)

.PHONY: sbom
sbom: ## Write what each image is made of, in CycloneDX's JSON
	@hack/ensure rust sbom
	@deploy/images/sbom

.PHONY: release
release: ## Build a release and write its files into target/release: VERSION=, REGISTRY=, HOMEPAGE=
	@deploy/release "$(VERSION)" "$(REGISTRY)" "$(HOMEPAGE)"

.PHONY: set-version
set-version: ## Write VERSION= wherever the version stands
	@hack/version set "$(VERSION)"

.PHONY: install
install: $(UP) images ## Install istio-aux into the cluster; WITH="node tenancy training-operator" installs these besides
	@$(if $(COMPONENTS),$(call ADD,$(COMPONENTS)))
	@$(IN_CLUSTER) helm upgrade --install istio-aux deploy/helm/istio-aux --namespace=istio-aux --create-namespace --wait --timeout=3m \
	  --set=image.registry=$(REGISTRY) --set-string=podAnnotations.installed="$$(date +%s)" $(SWITCHED_ON) \
	  $(if $(SLOWNESS),--set=timeoutSeconds=$$((2 * $(SLOWNESS)))) >/dev/null
	@$(IN_CLUSTER) kubectl label namespace istio-aux pod-security.kubernetes.io/enforce=restricted --overwrite >/dev/null
	@$(IN_CLUSTER) target/images/istio-aux check --wait --timeout=3m >/dev/null
	@echo "istio-aux is installed; next: kubectl label namespace NAME istio-aux.io/injection=enabled"
	@$(if $(filter node,$(WITH)),$(INSTALL_NODE))

.PHONY: uninstall
uninstall: $(filter named-context,$(UP)) ## Remove istio-aux from the cluster
	@$(IN_CLUSTER) kubectl delete mutatingwebhookconfiguration istio-aux zz-istio-aux --ignore-not-found
	@$(IN_CLUSTER) helm uninstall istio-aux --namespace=istio-aux --ignore-not-found --wait
	@$(IN_CLUSTER) kubectl delete namespace istio-aux --ignore-not-found

.PHONY: boot
boot:
	@hack/boot

.PHONY: cluster-up
cluster-up: ## Boot the one-node cluster, and print its KUBECONFIG
	@$(CLUSTER_COMMAND) up

.PHONY: cluster-down
cluster-down: ## End the one-node cluster; what was built is kept
	@$(CLUSTER_COMMAND) down
