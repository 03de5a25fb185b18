# `make help` lists the targets. MPI=mpich (default), openmpi or intel chooses the MPI; each has its own environment,
# made once from setup.cfg and then used without a network.

MPI    ?= mpich
PYTHON ?= python3

VENV_mpich   := .venv
VENV_openmpi := .venv-openmpi
VENV_intel   := .venv-intel
VENV_apps    := .venv-apps
VENV_docs    := .venv-docs
VENV_torch   := .venv-torch$(if $(filter-out mpich,$(MPI)),-$(MPI))
VENV := $(VENV_$(MPI))
ifeq ($(VENV),)
$(error MPI=$(MPI) is none of mpich, openmpi, intel)
endif

BIN     := $(CURDIR)/$(VENV)/bin
PY      := $(BIN)/python
STAMP   := $(VENV)/.installed
EXTRAS  := $(MPI),svg,train,report,tune,jobs,test,dev
MPIEXEC  = $(PY) tests/launcher.py
# Installs into an environment. With UV, the path of a uv, in a tenth of pip's time; uv reads no pip.conf.
UV ?=
install = $(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python,$(1)/bin/python -m pip install --quiet --disable-pip-version-check)

TEST_ARGS ?=
SOAK_MINUTES ?= 60
SOAK_ARGS ?=
APPS_ARGS ?=
CLUSTER_ARGS ?=
TRAIN_ARGS ?=
# As many as there are cores, from 2 to 8: on more, nothing can be hidden behind computing.
TRAIN_RANKS ?= $(shell $(PYTHON) -c "import os; print(min(8, max(2, len(os.sched_getaffinity(0)))))")
# The oldest version on which everything of torch is tested.
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
TORCH_SUITE_ARGS ?=
FULL_ARGS ?=
MAX_RANKS ?= 64

# With it each of thousands of processes compiles all modules that it imports, which takes half of its time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env torch-env bench train train-torch bench-full bench-cluster test test-full test-torch test-apps test-survive soak verify docs site lint clean distclean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo '  with MPI=mpich|openmpi|intel, PYTHON=python3.x, TEST_ARGS="--ranks 3 -- -k ring", CLUSTER_ARGS=--quick, FULL_ARGS="--launches 2", SOAK_MINUTES=5,'
	@echo '  and UV=uv, the path of a uv: environments in a tenth of the time'

env: $(STAMP)  ## make the environment

$(STAMP): setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo 'mpicoll needs Python 3.10 or newer; $(PYTHON) is' "$$($(PYTHON) --version 2>&1)."; \
	  echo 'Name another: make PYTHON=python3.12'; exit 1; } >&2
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(call install,$(VENV)) -e '.[$(EXTRAS)]'
	@touch $@

bench: env  ## training on real data, then nine collectives beside the MPI's own
	$(MPIEXEC) -n $(TRAIN_RANKS) $(BIN)/mpicoll train data_parallel,zero3
	$(MPIEXEC) -n 2 $(BIN)/mpicoll train data_parallel --time
	$(MPIEXEC) -n 2 $(PY) -m mpicoll.benchmarks.sidebyside

train: env  ## every pattern of distributed training on 4 ranks, beside one rank, in one table
	$(MPIEXEC) -n 4 $(BIN)/mpicoll train $(TRAIN_ARGS)

torch-env: $(VENV_torch)/.installed

train-torch: torch-env  ## a small GPT by torch's DDP and FSDP2 on 2 ranks, on mpicoll and on Gloo
	$(VENV_torch)/bin/python tests/launcher.py -n 2 $(VENV_torch)/bin/python -m mpicoll.benchmarks.torch gpt $(TRAIN_ARGS)

bench-full: env  ## five launches of everything on 2 ranks of this machine, and which figures are reached
	$(PY) -m mpicoll.benchmarks.full $(FULL_ARGS)
	$(MPIEXEC) -n 2 $(PY) -m mpicoll.benchmarks.forms

bench-cluster: env  ## 8 hosts with slow links, all here: the MPI's own, this library, peers, the limit; as root
	$(PY) -m mpicoll.benchmarks.cluster --mpi $(MPI) $(CLUSTER_ARGS)

test: env  ## each unit test once, every algorithm on 2, 3 and 4 ranks, and a part of the rest: 5 to 7 minutes
	$(PY) tests/run.py $(TEST_ARGS)

test-full: env  ## what make test and CI leave out: all tests on 1 to 8 ranks, 5 % on 12 to 16, the core on 64 (MPICOLL_REQUIRE=browser,hosts,slurm)
	$(PY) tests/run.py --full $(TEST_ARGS)

test-torch: torch-env  ## what torch trains with, on 1 to 4 ranks, and torch's own op suite beside Gloo
	$(VENV_torch)/bin/python tests/run.py --suites torch_programs,torch $(TORCH_ARGS)
	$(VENV_torch)/bin/python tests/torch/suite.py $(TORCH_SUITE_ARGS)

$(VENV_torch)/.installed: setup.cfg
	@$(VENV_torch)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV_torch)
	$(call install,$(VENV_torch)) '$(TORCH)' expecttest
	$(call install,$(VENV_torch)) -e '.[$(MPI),torch,train,jobs,report,test]'
	@touch $@

test-apps: $(VENV_apps)/.installed  ## the suites of Heat, mpi4py-fft and PyLops-MPI, natively and with mpicoll (docs/APPLICATIONS.md)
	$(VENV_apps)/bin/python tests/apps/run.py $(APPS_ARGS)

$(VENV_apps)/.installed: setup.cfg $(wildcard tests/apps/requirements*.txt)
	@$(VENV_apps)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV_apps) $(VENV_docs)
	$(call install,$(VENV_apps)) -r tests/apps/requirements.txt
	$(call install,$(VENV_apps)) --no-deps --no-build-isolation -r tests/apps/requirements-alone.txt
	$(call install,$(VENV_apps)) --no-deps -e .
	@touch $@

test-survive: env  ## MPI=openmpi: a rank is killed in every algorithm and form, and in other places, and the others continue: 9 minutes
	$(PY) tests/survive.py $(SURVIVE_ARGS)
	$(PY) tests/survive.py --situations all

soak: env  ## random programs of collectives on 1 to 8 ranks for SOAK_MINUTES (60); prints what ran and what failed
	$(PY) tests/soak.py --minutes '$(SOAK_MINUTES)' $(SOAK_ARGS)

verify: env  ## prove every algorithm for every number of ranks up to MAX_RANKS
	$(BIN)/mpicoll verify --max-ranks $(MAX_RANKS)

docs: env  ## write docs/ALGORITHMS.md, its pictures and README's table from what is registered
	$(PY) -m mpicoll.describe.generate

site: $(VENV_docs)/.installed  ## the pages and an API reference as a site in build/site, warnings being errors
	rm -rf build/site build/doctrees docs/api
	$(VENV_docs)/bin/python -m sphinx -b html -W --keep-going --quiet -c docs/site -d build/doctrees . build/site
	@echo 'open build/site/index.html'

# An MPI, because the docstrings are read from what is imported; the extras of the commands that are shown.
$(VENV_docs)/.installed: setup.cfg
	@$(VENV_docs)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV_docs)
	$(call install,$(VENV_docs)) -e '.[mpich,report,tune,jobs,docs]'
	@touch $@

lint: env  ## style, words, types, and that imports point one way
	$(BIN)/ruff check .
	$(PY) tests/style.py
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:  ## remove caches, build outputs and results of bench-full and bench-cluster
	rm -rf build dist docs/api *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean  ## and the environments
	rm -rf $(VENV_mpich) $(VENV_openmpi) $(VENV_intel) $(VENV_apps) $(VENV_docs) .venv-torch*
