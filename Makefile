# Two commands need nothing but Python 3.11+: `make twin` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS ?= runs
PLAN ?= tiny-ddp
COVER ?=
# What `twin-gpu` adds to a machine's own Python, which may be nobody's to write to.
SMALL = PYTHONPATH="$(abspath $(RUNS))/packages$${PYTHONPATH:+:$$PYTHONPATH}"

# Tests start some hundred processes: what is compiled once is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: twin twin-gpu test gates bench accuracy reliability coverage covered mutation noticed gallery docs lint check clean

$(VENV)/.run: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,sweep,test,lint]'
	@# HTA reads our traces in a test; its own requirements (JupyterLab) are not needed for that.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps HolisticTraceAnalysis
	@touch $@

twin: $(VENV)/.run       ## probe this machine, predict, run, compare, write the report
	$(BIN)/steptwin twin $(PLAN) --out $(RUNS)/$(PLAN)

test: $(VENV)/.dev       ## every test that this machine can run
	@# Tests without devices run beside each other, whole files at a time; those that measure or start ranks run alone.
	$(BIN)/python -m pytest tests/null tests/conformance -n logical --maxprocesses 8 --dist loadfile $(COVER)
	$(BIN)/python -m pytest tests/gloo tests/gpu tests/browser

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: test lint

gates:                   ## what must pass before a change is taken: tests with coverage, linters, a sample of damages to the code
	$(MAKE) test COVER="--cov --cov-report= --cov-fail-under=0 --hypothesis-seed=0"
	$(MAKE) covered lint noticed

bench: $(VENV)/.dev      ## speed, as ratios to SimPy's own event rate, and predicted against stock
	$(BIN)/python -m tests.bench

reliability: $(VENV)/.dev ## damaged input by the hundred thousand: a table of readers
	$(BIN)/python -m tests.reliability
	$(BIN)/python -m tests.reliability.soak 0.1

coverage: $(VENV)/.dev   ## branches of sim and topologies that tests without devices reach (at least 95 %), file by file
	$(BIN)/python -m pytest tests/null tests/conformance -n logical --maxprocesses 8 --dist loadfile --cov --cov-report=term:skip-covered

covered:                 ## the same of the last run with coverage, room by room
	$(BIN)/python -m tests.reliability.covered 95

noticed: $(VENV)/.dev    ## a fixed sample of damages to lowering, schedules and costs: which do the tests notice?
	$(BIN)/python -m tests.reliability.mutation_sample --least 50

mutation: $(VENV)/.dev   ## ten times as many damages, and whole files with their own tests
	$(BIN)/python -m tests.reliability.mutation_sample --each 400
	$(BIN)/python -m tests.reliability.mutation sim/lower/data_parallel/buckets.py tests/null/lower/test_buckets.py tests/null/lower/test_data_parallel.py
	$(BIN)/python -m tests.reliability.mutation sim/schedule/zero_bubble.py tests/null/schedule
	$(BIN)/python -m tests.reliability.mutation sim/cost/tiles.py tests/null/cost --most 60

accuracy: $(VENV)/.dev   ## published steps, collectives, kernels, memory, this machine
	$(BIN)/steptwin accuracy
	$(BIN)/steptwin here --out $(RUNS)/here

twin-gpu:                ## the table of GPU plans on this node's GPUs: predicted, played, trained; resumes where it was
	@# A machine's own torch fits its driver, and needs no network; it is given the small packages that it lacks. Only where none sees the GPUs is one
	@# installed afresh.
	@if $(PYTHON) -c 'import tomllib, torch; raise SystemExit(not torch.cuda.is_available())' 2> /dev/null && \
	    { $(SMALL) $(PYTHON) -c 'import msgspec, networkx, simpy' 2> /dev/null || \
	      $(PYTHON) -m pip install --quiet --no-deps -c constraints.txt --target $(RUNS)/packages msgspec networkx simpy nvidia-ml-py; }; \
	then $(SMALL) $(PYTHON) -m executor.validation.gpu_run --out $(RUNS)/gpu; \
	else $(MAKE) $(VENV)/.run && $(BIN)/steptwin here --gpu --out $(RUNS)/gpu; fi

gallery: $(VENV)/.dev    ## the README's pictures, from real pages (after `make twin`)
	$(BIN)/python -m tests.browser.gallery $(RUNS)/$(PLAN)

docs: $(VENV)/.dev       ## README and every docstring as HTML in build/docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@for room in topologies sim executor reports; do $(BIN)/sphinx-apidoc --force --separate --no-toc --module-first --output-dir build/api-source $$room > /dev/null; done
	@rm -rf reports/docs/api && mkdir -p reports/docs/api && mv build/api-source/*.rst reports/docs/api/
	@printf 'steptwin\n========\n\n.. automodule:: steptwin\n   :members:\n' > reports/docs/api/steptwin.rst
	PYTHONPATH=. $(BIN)/sphinx-build -q -b html reports/docs build/docs

clean:
	rm -rf $(VENV) runs build dist
