# Espalier's two commands for newcomers are `make demo` and `make test`; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

DEVICE ?= cpu
OUT ?= runs/demo
SUITE ?= examples/demo/suite.toml
# One cache for downloads, models, Python environments, the compiled interpreter and cargo's output, outside the
# checkout, so that a second clone starts warm.
export ESPALIER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/espalier
export CARGO_TARGET_DIR ?= $(ESPALIER_CACHE)/target
export ESPALIER_MODELS ?= $(ESPALIER_CACHE)/models
ESPALIER := $(CARGO_TARGET_DIR)/debug/espalier

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

.PHONY: setup
setup: libtorch build model ## Everything the demo needs (DEVICE=cuda takes the full libtorch)

.PHONY: libtorch
libtorch:
	@scripts/setup-libtorch.sh $(DEVICE)

.PHONY: build
build: libtorch ## Build the command
	@cargo build --locked --workspace --bins

.PHONY: model
model: build
	@scripts/setup-model.sh $(ESPALIER) model convert

.PHONY: demo
demo: setup ## Set up, then the main job: a model works in REPLs, alone and with copies of itself
	@$(ESPALIER) eval --suite $(SUITE) --out $(OUT)
	@$(ESPALIER) trajectories show $(OUT) --tree

.PHONY: test
test: setup ## Set up what tests need, and run them all
	@cargo test --locked --workspace

.PHONY: test-clients
test-clients: setup ## The Tinker cookbook's recipes, unchanged, against the Tinker server (downloads, half an hour)
	@"$$(scripts/setup-tinker-cookbook.sh)" tests/clients/cookbook.py $(ESPALIER) smollm2-135m-instruct

.PHONY: check
check: libtorch ## Formatting, lints, docs, licences, the build without libtorch
	@scripts/check.sh

.PHONY: bench
bench: setup ## Measure this machine, side by side with peers; raw output goes to benches/results/
	@benches/run.sh

.PHONY: soak
soak: setup ## Hours of hostile blocks, forks and drops; raw output goes to benches/results/
	@benches/soak.sh
