# The only place that knows how to set up a fresh machine.
#
#   make run    the demonstration: a rehearsal with a tiny model on vLLM's CPU backend; ARGS="--execution_mode=valid" and others
#   make test   the test suite, one real rehearsal included
#   make test-long   the trials of the real vLLM that `make test` leaves out: several servers, Ray, INT8, GPTQ, the FP8 kernel, killed owners and engines
#   make coverage   the tests of `make test` but those that measure time, and how much of src they run; fails where that is too little
#   make setup  what both share: environment, package, CM home
#   make clean  removes the environment and the CM home with its cache; `make clean-results` removes the results
#   make audit  compares the pinned packages with known vulnerabilities; `make check` does it once a day
#   make lock   writes requirements*.txt again from pyproject.toml, with hashes; ARGS=--upgrade takes newer versions

PYTHON ?= python3
VENV   := .venv
# Relative, because the path of the checkout may have spaces.
BIN    := $(VENV)/bin
ARGS   ?=
# Tests side by side: two more than there are processors, because many wait. tests/conftest.py says which run alone.
TEST_PROCESSES ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 6 ? n + 2 : 8 )))

# A CM home of our own: nothing else on the machine changes, and no other repository's script engine comes first.
CM_REPOS ?= $(CURDIR)/.cm
export CM_REPOS
export PATH := $(CURDIR)/$(BIN):$(PATH)
# They would have other modules imported than the installed ones.
ifneq ($(PYTHONPATH)$(PYTHONHOME),)
$(info PYTHONPATH and PYTHONHOME are not used by make)
endif
unexport PYTHONPATH PYTHONHOME

# Nothing is done where all is whole. With another Python than that of the environment only if it was asked for. The first
# folder of PATH is that of the environment, which may be half made.
INSTALL := @PATH="$${PATH\#*:}" && $(PYTHON) -I environment.py $(if $(filter file,$(origin PYTHON)),,--this-python) $(VENV)
# The same packages fit Python 3.11 to 3.14 on x86-64 and aarch64; the hashes are those of all their files.
LOCK := $(BIN)/uv pip compile --quiet --no-annotate --generate-hashes --python-platform=linux --custom-compile-command='make lock'
AUDIT = $(BIN)/python tests/audit.py $(BIN)/pip-audit requirements-test.txt

.PHONY: setup run test test-long coverage check audit lock clean clean-results $(VENV)/.installed $(VENV)/.installed-test

# Bytecode is written here once: where PYTHONDONTWRITEBYTECODE is set, every start would compile all anew.
setup: $(VENV)/.installed
	@$(BIN)/python -P -m compileall -q src automation script
	@$(BIN)/python -P -m cm4vllm.engine.tools.register "$$PWD"

run: setup
	@$(BIN)/cm run script --tags=run-mlperf,inference,_vllm --quiet $(ARGS)

# The checks of the code use one processor, and begin while the first tests wait for vLLM's installation. The first time
# the tests are compiled by one process: else each of those that run them would compile them all.
test: setup $(VENV)/.installed-test
	@$(MAKE) --no-print-directory check & checked=$$!; \
	test -d tests/__pycache__ || PYTHONDONTWRITEBYTECODE= $(BIN)/python -P -m pytest --collect-only --quiet > /dev/null; \
	$(BIN)/python -P -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS); \
	tested=$$?; wait $$checked || { echo "make check failed: see above" >&2; exit 1; }; exit $$tested

test-long: setup $(VENV)/.installed-test
	@$(BIN)/python -P -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m long $(ARGS)

# The folder of the data is open to all users, because tests start programs as another one.
# A process that a test kills leaves data that cannot be read: the first command warns of it and leaves it out.
# Percent of the branches of src that the tests have to run: a little below what they ran when this was set (87.2).
LEAST_BRANCHES ?= 86
coverage: setup $(VENV)/.installed-test
	@data=$$(mktemp -d) && trap 'rm -rf "$$data"' EXIT && chmod 1777 "$$data" && export COVERAGE_FILE="$$data/data"; \
	$(BIN)/python -P -m coverage run --source="$$PWD/src/cm4vllm" -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not long and not timing" $(ARGS); \
	tested=$$?; $(BIN)/coverage combine --quiet && rm -f "$$data"/data.* && $(BIN)/coverage report && $(BIN)/coverage json --quiet -o "$$data/json" && \
	$(BIN)/python -P -c 'import json, sys; t = json.load(open(sys.argv[1]))["totals"]; print("branches of src: {covered_branches:,} of {num_branches:,} run; statements: {covered_lines:,} of {num_statements:,}".format(**t)); sys.exit("fewer than $(LEAST_BRANCHES) % of the branches were run" if 100 * t["covered_branches"] < $(LEAST_BRANCHES) * t["num_branches"] else 0)' "$$data/json" && exit $$tested

check: $(VENV)/.installed-test
	@$(BIN)/ruff format --no-cache --check --quiet --diff environment.py src script automation tests benchmarks docs/tools
	@$(BIN)/ruff check --no-cache environment.py src script automation tests benchmarks docs/tools
	@mkdir -p $(VENV)/recipes && rm -f $(VENV)/recipes/*.py && for path in script/*/customize.py automation/*/module.py; do \
	  folder=$${path%/*}; ln -sfn ../../$$path $(VENV)/recipes/$${folder##*/}.py; done
	@$(BIN)/mypy
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build > $(VENV)/site.log 2>&1 || { cat $(VENV)/site.log; exit 1; }
# Without network it reports that nothing was audited, and does not fail.
	@$(AUDIT) --kept=$(VENV)/audit.json

$(VENV)/.installed:
	$(INSTALL) requirements.txt

$(VENV)/.installed-test:
	$(INSTALL) requirements.txt requirements-test.txt

audit: $(VENV)/.installed-test
	@$(AUDIT) --strict

lock:
	$(INSTALL) requirements-tools.txt
	$(LOCK) $(ARGS) --python-version=3.11 pyproject.toml --output-file=requirements.txt
	$(LOCK) $(ARGS) --python-version=3.11 pyproject.toml --extra=test --constraints=requirements.txt --output-file=requirements-test.txt
	$(LOCK) $(ARGS) --python-version=3.11 --group=tools --output-file=requirements-tools.txt

# The results are not made again by any command: they go only where that is asked for.
clean:
	rm -rf $(VENV) .cm

clean-results:
	rm -rf mlperf-results
