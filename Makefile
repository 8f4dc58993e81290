# Every target sets up what it needs in .venv and .cache; `make help` lists them.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q
RESULTS := .cache/tests
# A test stands in REAL_FOLDERS if it needs Go, root, a package of Debian or Chromium.
FOLDERS := tests/stateful tests/costs tests/integration tests/native tests/fuzz tests/unit
REAL_FOLDERS := tests/e2e tests/chart tests/release tests/privileged tests/web
WORKERS ?= $(shell echo $$(($$(nproc) + 2))) # many tests wait
# Files in the order of FOLDERS: left to itself pytest-xdist keeps the files with the longest tests for the end.
BY_FILE := loadfile --no-loadscope-reorder
PARTS ?= stateful
MINUTES ?= 60
PROFILE ?= test
NUMBERED := src/gputile/version.py charts/gputile/Chart.yaml Dockerfile examples/agent/daemonset.yaml \
	docs/guides/install.md docs/guides/getting-started.md docs/guides/laptop.md
KUBERNETES ?= 1.30 1.37
VERSIONED := $(addprefix tests/e2e/test_,policies.py claims.py webhook.py controller.py extender.py gangs.py \
	preemption.py quotas.py flows.py outages.py security.py node.py \
	manifests.py::test_the_api_server_accepts_every_object_of_the_chart)
DEMO := simulate --cluster examples/cluster.yaml -f examples/workloads.yaml -f examples/teams.yaml \
	-f examples/too-large.yaml --compare packing

# Tests start hundreds of programs: whatever the environment says, none compiles again what one before has imported.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/pycache
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test e2e quick lint types imports unit kubernetes image gpu release version docs picture soak bench growth cluster policies dashboards fields layouts lint-c lock clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): requirements/uv.txt requirements/dev.txt requirements/docs.txt pyproject.toml hatch_build.py \
		src/gputile/version.py $(wildcard native/*/*)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@$(BIN)/uv pip sync -q --python $(BIN)/python --require-hashes requirements/uv.txt requirements/dev.txt \
		requirements/docs.txt
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# One pod of the demo has no place, which is exit code 3; any other code but 0 is an error.
demo: $(STAMP) ## decide which GPU each pod of examples/ gets, by two policies, and draw the cluster's GPUs
	@$(BIN)/gputile $(DEMO) || test $$? -eq 3

# Runs the tests of folders beside each other as $(3) says, and then those marked `alone`, whatever became of the first.
define run_tests
@rm -f $(RESULTS)/$(1)*.xml
@$(PYTEST) $(2) -n $(WORKERS) --dist $(3) -m "not alone" --junit-xml=$(RESULTS)/$(1).xml; beside=$$?; \
	$(PYTEST) $(2) -m alone --junit-xml=$(RESULTS)/$(1)-alone.xml; exit $$((beside | $$?))
endef

test: $(STAMP) ## all that needs only Python, a C compiler and pip: lint, types, imports and the tests of FOLDERS
	@$(MAKE) --no-print-directory -j2 -O types lint imports
	$(call run_tests,test,$(FOLDERS),$(BY_FILE))

e2e: $(STAMP) ## the real thing: tests on a real control plane, of the chart, of the image and of the page in Chromium
	$(call run_tests,e2e,$(REAL_FOLDERS),loadgroup)

quick: $(STAMP) ## lint, types, imports and the unit tests with fewer examples, in under two minutes
	@$(MAKE) --no-print-directory -j2 -O PROFILE=quick unit types lint imports

lint: $(STAMP) ## ruff, and lint-c: lint and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory lint-c

lint-c: $(STAMP) ## C: clang-format, warnings of gcc and clang, clang-tidy
	@$(BIN)/python -m native.lint

types: $(STAMP) ## mypy --strict over all Python of the repository
	@$(BIN)/mypy

imports: $(STAMP) ## import-linter: imports run one way
	@$(BIN)/lint-imports

unit: $(STAMP) ## the tests of single parts
	@$(PYTEST) tests/unit -n $$(($$(nproc) + 1)) --dist $(BY_FILE) --hypothesis-profile=$(PROFILE)

kubernetes: $(STAMP) ## the tests on a control plane and a node of the oldest and the newest Kubernetes, built the first time
	@for minor in $(KUBERNETES); do GPUTILE_KUBERNETES=$$minor $(BIN)/python -m pytest $(VERSIONED) || exit 1; done

gpu: $(STAMP) ## the tests on this machine's NVIDIA GPU, with those of PyTorch, JAX and CuPy that are installed in .venv
	@$(BIN)/python -m pytest tests/gpu -s

REPOSITORY_OPTION = $(if $(REPOSITORY), '--repository=$(REPOSITORY)')

image: $(STAMP) ## the container image as an archive in dist/, with its bill of materials; REPOSITORY=... is its name
	@$(BIN)/python -m release image$(REPOSITORY_OPTION)

release: $(STAMP) ## all that people take in dist/; from URL=https://..., the image by REPOSITORY=...
	@$(BIN)/python -m release all$(if $(URL), '--url=$(URL)')$(REPOSITORY_OPTION)

version: $(STAMP) ## make the sources those of VERSION, as 0.3.0: changes/ into CHANGELOG.md, the number wherever it stands
	@[[ "$(VERSION)" =~ ^[0-9]+\.[0-9]+\.[0-9]+$$ ]] || { echo "name the version: make version VERSION=0.3.0" >&2; exit 2; }
	@$(BIN)/towncrier build --yes --version "$(VERSION)" --date "$$(date --utc +%F)"
	@before=$$($(BIN)/python -m hatchling version) && sed -i "s/\b$${before//./\\.}\b/$(VERSION)/g" $(NUMBERED)
	@$(BIN)/python -m docs.generator

docs: $(STAMP) ## the documentation as a site in .cache/site: strict, links checked, nothing from elsewhere
	@$(BIN)/python -m docs.generator
	@$(BIN)/python -m zensical build --clean --strict
	@echo "docs: .cache/site/index.html"

picture: $(STAMP) ## draw the picture of the page in docs/pictures anew, in a real browser
	@$(BIN)/python -m docs.generator.page_picture

soak: $(STAMP) ## rounds of tests with other chances each, for MINUTES (60); PARTS says which (stateful, native, system)
	@for part in $(PARTS); do $(BIN)/python -m tests.soak $$part --minutes $(MINUTES) || exit 1; done

bench: $(STAMP) ## the benchmarks, as ratios within one run
	@$(BIN)/python -m benchmarks

growth: $(STAMP) ## measure how costs grow with the cluster, and print the tables of docs/reference/benchmarks.md
	@$(BIN)/python -m benchmarks.growth

cluster: $(STAMP) ## a real control plane with simulated GPU nodes, for kubectl
	@$(BIN)/python -m tests.localcluster

policies: $(STAMP) ## write the lists of the policies in CEL from the constants of the rules in Python
	@$(BIN)/python -m charts.cel_lists

dashboards: $(STAMP) ## write Grafana's dashboards of the chart from their description
	@$(BIN)/python charts/dashboards.py

fields: $(STAMP) ## write the fields of Kubernetes' kinds from the local control plane's API server
	@$(BIN)/python -m tests.localcluster.kubernetes_fields

# Without an install, which compiles native/ and so fails while the headers are those of before.
layouts: ## write the C headers of what C and Python have in common
	@test -x $(BIN)/python || $(MAKE) $(STAMP)
	@PYTHONPATH=src:. $(BIN)/python native/layouts.py

lock: $(STAMP) ## re-resolve requirements/*.txt (versions and hashes, no addresses)
	@$(BIN)/uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --no-header requirements/uv.in -o requirements/uv.txt
	@$(BIN)/uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --no-header requirements/fuzz.in -o requirements/fuzz.txt
	@$(BIN)/uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --no-header pyproject.toml -o requirements/runtime.txt
	@$(BIN)/uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --no-header --group dev \
		-c requirements/runtime.txt pyproject.toml -o requirements/dev.txt
	@$(BIN)/uv pip compile -q --upgrade --generate-hashes --python-version 3.11 --no-header \
		-c requirements/dev.txt requirements/docs.in -o requirements/docs.txt

clean: ## remove what the targets made
	@rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
