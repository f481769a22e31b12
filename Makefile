# Every target below prepares what it needs: it finds a Python, creates .venv and installs the
# package there. A second run does none of that again unless pyproject.toml has changed.
#
# The Python is found by itself. To name one by hand: make PYTHON=/path/to/python demo

SHELL = /bin/sh
PYTHON =
NAMES = python3 python3.14 python3.13 python3.12 python
VENV = .venv
BENCH_VENV = .venv-bench
TALL_VENV = .venv-tall
MODEL = logistic
ROWS = 100000
RUN = $(VENV)/bin/python
PYTEST = OMP_NUM_THREADS=1 $(RUN) -m pytest -n auto --dist loadfile

.SUFFIXES:
.NOTPARALLEL:
.PRECIOUS: $(RUN)
.DEFAULT_GOAL = help
.PHONY: help demo bench tall-posteriors figure case-studies test test-all lint types docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  Python is found by itself; to name one: make PYTHON=/path/to/python TARGET"

demo: $(VENV)/.installed-examples ## run examples/quickstart.py
	@$(RUN) examples/quickstart.py

# nutpie needs a newer zarr than PyMC's ZarrTrace, hence the environment of its own.
bench: $(BENCH_VENV)/.installed ## compare with other samplers: make bench MODEL=poisson ROWS=1000000
	@$(BENCH_VENV)/bin/python -m benchmarks --model $(MODEL) --rows $(ROWS) --output docs/benchmarks.md

tall-posteriors: $(TALL_VENV)/.installed ## an environment with the programs of benchmarks/tall_posteriors
	@$(TALL_VENV)/bin/python -m benchmarks.tall_posteriors list

# Some ten minutes on an idle machine; NUTS at a million rows is left to `make bench`.
figure: $(BENCH_VENV)/.installed $(VENV)/.installed-docs ## measure and draw seconds against rows
	@for rows in 10000 100000; do \
	  $(BENCH_VENV)/bin/python -m benchmarks --rows $$rows --only =minibatchmh hmcecs nuts \
	    --output docs/benchmarks.md || exit 1; \
	done
	@$(BENCH_VENV)/bin/python -m benchmarks --rows 1000000 --only =minibatchmh hmcecs \
	  --output docs/benchmarks.md
	@$(RUN) -m benchmarks.figure docs/benchmarks.md docs/images/seconds_by_rows.svg

case-studies: $(VENV)/.installed-case-studies ## execute the notebooks of docs/case_studies anew
	@$(RUN) docs/case_studies/run.py

# -n auto: as many workers as there are cores, with one thread of BLAS each. The tests of a file
# share compiled models.
test: lint types ## lint, check types, run the first tier of the tests: some minutes
	@echo "running the tests of the first tier ..."
	@$(PYTEST) -m "not slow"

test-all: test docs ## the same, build the documentation, run all other tests: up to an hour
	@echo "running the tests of the second tier ..."
	@$(PYTEST) -m slow

lint: $(VENV)/.installed-dev ## check the style of the code
	@echo "checking style ..."
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

types: $(VENV)/.installed-dev ## check the types of the package
	@echo "checking types ..."
	@$(RUN) -m mypy

# -E reads every page afresh: a page that is not read again would not repeat its warnings.
docs: $(VENV)/.installed-docs ## build the documentation into docs/_build/html
	@echo "building the documentation ..."
	@$(RUN) -m sphinx -q -E -W --keep-going -b html docs docs/_build/html

clean: ## remove what was built (.venv stays)
	@echo "removing build products and caches ..."
	@rm -rf build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find pymc_minibatch tests examples docs -type d -name __pycache__ -prune -exec rm -rf {} +

# --- Set-up -----------------------------------------------------------------------------------

# One stamp for each set of extras. `dev` contains the other two.
$(VENV)/.installed-examples: pyproject.toml $(RUN)
	$(call install,examples)
	@touch $@

$(VENV)/.installed-docs: pyproject.toml $(RUN)
	$(call install,docs)
	@touch $@

$(VENV)/.installed-case-studies: pyproject.toml $(RUN)
	$(call install,case-studies)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(RUN)
	$(call install,dev)
	@touch $(VENV)/.installed-examples $(VENV)/.installed-docs $@

$(BENCH_VENV)/.installed: pyproject.toml $(RUN)
	@test -x $(BENCH_VENV)/bin/python || { \
	  echo "creating $(BENCH_VENV) ..."; $(RUN) -m venv $(BENCH_VENV); }
	@echo "installing pymc-minibatch[benchmarks] into $(BENCH_VENV) ..."
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[benchmarks]'
	@touch $@

$(TALL_VENV)/.installed: pyproject.toml $(RUN)
	@test -x $(TALL_VENV)/bin/python || { \
	  echo "creating $(TALL_VENV) ..."; $(RUN) -m venv $(TALL_VENV); }
	@echo "installing pymc-minibatch[tall-posteriors] into $(TALL_VENV) ..."
	@$(TALL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[tall-posteriors]'
	@touch $@

# $(call install,EXTRAS): the package, editable, into a .venv that may have been made by hand.
define install
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || { \
	  echo "error: .venv does not hold a working Python 3.12 or newer." >&2; \
	  echo "Remove the folder .venv, then run make again: it will be made anew." >&2; \
	  exit 1; }
	@$(RUN) -m pip --version >/dev/null 2>&1 || $(RUN) -m ensurepip >/dev/null || { \
	  echo "error: .venv has no pip, and pip could not be added." >&2; \
	  echo "Remove the folder .venv, then run make again: it will be made anew." >&2; \
	  exit 1; }
	@echo "installing pymc-minibatch[$(1)] into .venv ..."
	@$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[$(1)]' || { \
	  echo "error: the installation failed; pip says why above." >&2; \
	  echo "Check the connection to the package index, then run make again." >&2; \
	  exit 1; }
endef

# A candidate counts only if it runs: a launcher may exist for a Python that is not installed.
# It must also be able to create environments, which some systems package separately.
$(RUN):
	@if [ -e $(VENV)/pyvenv.cfg ]; then \
	  echo "error: .venv does not hold a working Python 3.12 or newer." >&2; \
	  echo "Remove the folder .venv, then run make again: it will be made anew." >&2; \
	  exit 1; \
	fi; \
	named='$(PYTHON)'; chosen=; lame=; \
	try() { \
	  "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 || return 1; \
	  "$$1" -c 'import ensurepip, venv' >/dev/null 2>&1 || { lame=$$1; return 1; }; \
	  chosen=$$1; \
	}; \
	if [ -n "$$named" ]; then try "$$named"; \
	else for name in $(NAMES); do try "$$name" && break; done; fi; \
	if [ -z "$$chosen" ]; then \
	  if [ -n "$$lame" ]; then \
	    echo "error: $$lame is new enough but cannot create environments (venv or ensurepip is missing)." >&2; \
	    echo "Install its venv package (on Debian and Ubuntu: python3-venv), or name another Python:" >&2; \
	  elif [ -n "$$named" ]; then \
	    echo "error: $$named does not run, or is older than Python 3.12." >&2; \
	    echo "Name a Python 3.12 or newer:" >&2; \
	  else \
	    echo "error: no Python 3.12 or newer was found (tried: $(NAMES))." >&2; \
	    echo "Install Python 3.12 or newer, or name one that is not on the PATH:" >&2; \
	  fi; \
	  echo "  make PYTHON=/path/to/python $(or $(MAKECMDGOALS),demo)" >&2; \
	  exit 1; \
	fi; \
	version=`"$$chosen" -c 'import platform; print(platform.python_version())'`; \
	echo "creating .venv with Python $$version ..."; \
	rm -f $(VENV)/.installed-*; \
	"$$chosen" -m venv $(VENV) || { \
	  echo "error: creating .venv failed; the reason is above." >&2; exit 1; }
