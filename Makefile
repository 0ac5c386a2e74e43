# setup makes .venv; every other target calls it. A second call is quick.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test lint soak clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh $(VENV) $(PYTHON)
	@touch $@

demo: setup
	@$(BIN)/gyre demo

# Three workers on two cores: the tests wait most of the time. torch gets one thread in each.
test: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder \
		-m "not soak and not gpu"

soak: setup
	@$(BIN)/python -m pytest -q -m soak

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright
	@$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache
	@echo "lint: clean"

# The services' data in .gyre stays; `gyre down && rm -r .gyre` removes that.
clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info build dist
