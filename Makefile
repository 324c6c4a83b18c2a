# Needs make and Python 3.11 or newer, nothing else: the first target that runs code makes .venv by itself.
# Choose an interpreter with `make PYTHON=python3.12 ...`.

.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:
.PHONY: help ui dev demo demo-ui pictures test test-more servers lint types format bench sim walk chaos size wheel clean distclean

PYTHON ?=
QUICK ?=
WHAT ?= sqlite worker flow durable flows lateness growth service history peers
SEED ?=
SECONDS ?= 30
CHAOS_JOBS ?= 100000
COVERAGE ?=
JOBS ?= auto

VENV := .venv
RUN := $(VENV)/bin/python
PIP = $(RUN) -m pip install --disable-pip-version-check -c constraints.txt
PACKAGE := $(VENV)/.package
READY := $(VENV)/.installed
CODE := $(foreach folder,src tests bench examples docs ui,$(if $(wildcard $(folder)/*.py $(folder)/*/*.py),$(folder)))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

ui: $(READY) ## build the dashboard into the package, its types checked against the HTTP API
	$(RUN) ui/build.py --check

dev: ui ## a starter app in build/dev with worker, schedules and dashboard: http://127.0.0.1:8000
	@test -f build/dev/app.py || $(RUN) -m dray init build/dev
	@cd build/dev && ../../$(RUN) -m dray dev

test: lint types ui servers ## lint, types and all tests but the slow ones
	$(RUN) -m pytest -n $(JOBS) -m "not slow and not chaos"

test-more: ui servers ## the slow tests: workers on clusters that fail over, blocking clients on a cluster
	$(RUN) -m pytest -n 1 -m slow

servers: $(READY) ## what the tests run on: valkey comes with .venv, redis-server and chromium from the system
	@$(RUN) tests/redis_install.py

lint: $(READY) ## check style and formatting
	$(RUN) -m ruff check $(CODE)
	$(RUN) -m ruff format --check $(CODE)

types: $(READY) ## check types, strictly
	$(RUN) -m mypy $(CODE)

format: $(READY) ## rewrite the code in the project's format
	$(RUN) -m ruff check --fix $(CODE)
	$(RUN) -m ruff format $(CODE)

demo: $(PACKAGE) ## see it work: a real worker on the embedded broker, with accidents; ends by itself
	@$(RUN) -m dray demo
	@echo '`make dev` shows the dashboard with a starter app, `make demo-ui` this tour in it.'

demo-ui: ui ## the tour, and then the dashboard on all of it: http://127.0.0.1:8000
	@$(RUN) -m dray demo --keep --ui

pictures: ui ## pictures of the dashboard for README and docs, into docs/img
	PICTURES=docs/img PICTURE_SECONDS=90 $(RUN) -m pytest tests/test_dashboard_pictures.py -q

sim: $(READY) ## simulate clients, faults and crashes on a virtual clock (SECONDS=30; SEED=n replays one)
	PYTHONPATH=tests $(RUN) -m sim --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

walk: $(READY) ## make the same random calls to every broker and compare (SECONDS=30; SEED=n replays one)
	@mkdir -p build && rm -rf build/walk.db*
	PYTHONPATH=tests $(RUN) -m walk --brokers memory:// sqlite:///build/walk.db \
	  --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(COVERAGE),--coverage)

chaos: $(READY) ## kill real producers, executors and supervisors, then count (CHAOS_JOBS=100000; SEED=n)
	DRAY_CHAOS_JOBS=$(CHAOS_JOBS) $(if $(SEED),DRAY_CHAOS_SEED=$(SEED)) $(RUN) -m pytest tests/test_chaos.py -x -q
	DRAY_CHAOS_JOBS=20000 $(if $(SEED),DRAY_CHAOS_SEED=$(SEED)) $(RUN) -m pytest tests/test_sqlite_processes.py -k kill -x -q
	$(RUN) -m pytest -m chaos -x -q

bench: $(READY) ## measure against bare loops and other task queues (QUICK=1: a look; WHAT=sqlite|worker|flow|durable|flows|lateness|growth|service|history|peers)
	for one in $(WHAT); do $(RUN) -m bench.$$one $(if $(QUICK),--quick) || exit 1; done

size: $(PACKAGE) ## count lines per room, and the ratio of tests to installed code
	@$(RUN) tests/size.py

wheel: $(READY) ## build dist/*.whl with what is installed
	$(RUN) -m hatchling build -t wheel

clean: ## remove what was built and cached; .venv stays
	rm -rf build dist src/dray/serve/ui ui/src/schema.d.ts .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## clean, and remove .venv and node_modules
	rm -rf $(VENV) ui/node_modules

# The package alone is enough for the demo. The build tools come first, so that it is built with the pinned ones.
$(PACKAGE): pyproject.toml constraints.txt
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && $(RUN) -m pip --version >/dev/null 2>&1 || { $(make_venv); }
	@echo 'Installing dray into $(VENV) ...'
	@$(PIP) --quiet hatchling editables
	@$(PIP) --quiet --no-build-isolation -e .
	@touch $(PACKAGE)

$(READY): $(PACKAGE)
	@echo 'Installing what tests and benches need into $(VENV) (about 500 MB) ...'
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $(READY)

define make_venv
old=; \
for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
  old=$$python; \
  "$$python" -c 'import ensurepip, venv' 2>/dev/null || continue; \
  echo "$$python -m venv --clear $(VENV)"; \
  exec "$$python" -m venv --clear $(VENV); \
done; \
if [ -n "$$old" ]; then \
  echo "$$old has no venv module. Install it (on Debian and Ubuntu: apt install python3-venv), then try again." >&2; \
else \
  echo "No Python 3.11 or newer found as python3 or python3.11 to python3.14." >&2; \
  echo "Install one, or name it: make PYTHON=path/to/python ..." >&2; \
fi; \
exit 1
endef
