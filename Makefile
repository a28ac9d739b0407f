# make setup   everything a fresh machine needs, in .venv and var (ACCEL=gpu on CUDA machines)
# make demo    two tenants train side by side; Ctrl-C ends it
# make up      the installation without demo data
# make test    every check and test
# make test-postgres   the portal's tests on a PostgreSQL of their own, where one is installed
# make bench   measures everything on this machine (QUICK=1: in minutes; PARTS=A,B: some parts); var/bench/report.html
ACCEL ?= cpu
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 8000
BIN := .venv/bin
STAMP := .venv/installed-$(ACCEL)

ifeq ($(ACCEL),gpu)
export MARLAAS_DEVICE ?= cuda
endif

# A folder of wheels that pip is told of may hold the CPU build of torch; otherwise it comes from PyTorch's own index.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
else ifeq ($(ACCEL),cpu)
TORCH := --torch-backend cpu
endif

.PHONY: setup demo up test test-postgres bench lint lock clean

setup: $(STAMP)
	$(BIN)/python -m engine prepare

$(STAMP): pyproject.toml requirements-$(ACCEL).lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	    { echo "Python 3.11 is needed; set PYTHON=<path of a Python 3.11>"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --python $(BIN)/python --no-deps $(TORCH) -r requirements-$(ACCEL).lock
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/python manage.py demo --port $(PORT) $(DEMO)

up: setup
	$(BIN)/python manage.py up --port $(PORT)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP) lint
	$(BIN)/python manage.py makemigrations --check --dry-run
	@status=0; \
	echo "Tests of parts and in the browser, two processes side by side"; \
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not engine" || status=$$?; \
	echo "Tests with a real engine, one after another"; \
	$(BIN)/python -m pytest -m engine || status=$$?; \
	exit $$status

bench: setup
	$(BIN)/python -m tests.benchmarks --size $(if $(QUICK),quick,full) $(if $(PARTS),--parts $(PARTS))

test-postgres: $(STAMP)
	$(BIN)/python -m tests.postgres

# The CPU lock takes torch's CPU build, whose version ends in +cpu; triton is dead weight without a GPU.
lock:
	echo "triton ; sys_platform == 'never'" | $(BIN)/uv pip compile pyproject.toml --extra cpu --extra dev --overrides - \
	    $(LOCK) --custom-compile-command "make lock" -o requirements-cpu.lock
	env -u UV_FIND_LINKS $(BIN)/uv pip compile pyproject.toml --extra gpu --extra dev $(LOCK) \
	    --custom-compile-command "make lock" -o requirements-gpu.lock
LOCK := --quiet --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-annotate

clean:
	rm -rf .venv var
