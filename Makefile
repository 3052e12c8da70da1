# Two commands on a fresh machine: `make run` and `make test`. Everything lands in .venv and .peers.
# The system's own Python first, where it is new enough: a distribution builds it optimised, pyenv by default does not,
# and that is a tenth of the speed. Another one: make PYTHON=python3.13
FIT    := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell /usr/bin/python3 -c '$(FIT)' 2>/dev/null && echo /usr/bin/python3 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# The tests start hundreds of nodes and commands: what was compiled once is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run demo test test-all bench lint format lock clean

help:            ## say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## install everything into .venv, as pinned in requirements.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Anabranch needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 …"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) \
	  || { command -v apt-get >/dev/null && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); } \
	  || { echo "Python's venv module is missing: install your system's python3-venv package, then try again."; exit 1; }
	@echo "Installing the pinned dependencies into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

PIPELINE ?= on
run: $(READY)    ## start a node on ./data, and the pipeline beside it on ./lake (PORT=7448: there; PIPELINE=off: without)
	@$(BIN)/anabranch serve --data ./data $(if $(PORT),--port $(PORT)) $(if $(filter off no 0,$(PIPELINE)),,--lake ./lake)

demo: $(READY)   ## a five-minute story on a real node
	@$(BIN)/anabranch demo

# Four at a time: tests also wait. Peers have time-outs of their own: they get the machine to themselves.
test: $(READY)   ## the tests
	@$(BIN)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder --ignore=tests/interop
	@$(BIN)/python -m pytest tests/interop

test-all: $(READY) ## the tests and the slow proofs
	@$(BIN)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder --ignore=tests/interop -m ''
	@$(BIN)/python -m pytest tests/interop -m ''

bench: $(READY)  ## every benchmark, peers and ours in the same run; one JSON object each
	@$(BIN)/python -m bench

lint: $(READY)   ## format, lint and types
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

format: $(READY) ## let ruff write the format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lock:            ## pin the dependencies anew (needs uv)
	uv pip compile --upgrade --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --group dev pyproject.toml -o requirements.lock

clean:           ## remove what make installed (not ./data)
	rm -rf $(VENV) .peers
