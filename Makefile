# make demo, make test, make bench: all the set-up on a fresh machine. PYTHON=... chooses the Python; otherwise
# the newest that is found. Environments lie in .venv/, one for each purpose, Python and jax.
PYTHON ?= $(shell sh fork/find_python.sh)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
LINE := $(if $(filter 3.11,$(VERSION)),old,new)
# Of build: its wheel lies in dist/KIND. RELEASE=0.12.9 builds that release of flax, of those in tests/pins.
KIND ?= $(VERSION)$(addprefix -flax-,$(RELEASE))
WHEELS := dist/$(KIND)
# JAX=0.11.1 tests with that release of jax.
ENV ?= .venv/test-$(KIND)$(addprefix -jax-,$(JAX))
CONSTRAINTS ?= $(if $(JAX),build/constraints-$(LINE)-jax-$(JAX).txt,tests/constraints-$(LINE).txt)
DEV := .venv/develop-$(VERSION)
DEMO := .venv/demo-$(VERSION)
BUILD := .venv/build-$(KIND)
SOURCES := $(shell find flax fork -name '*.py' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.toml' -o -name '*.h') \
  fork/tools.txt setup.py pyproject.toml upstream.txt README.md NOTICE
PIP := -m pip --disable-pip-version-check --quiet
TOOLS := --require-hashes -r fork/tools.txt
export JAX_PLATFORMS ?= cpu
ifdef RELEASE
export FLAX_FAST_PIN := $(CURDIR)/tests/pins/$(RELEASE).txt
endif

.PHONY: demo test test-all unit fuzz fuzz-develop memory planted downstream upstream lint develop checked sanitize wheel wheels reproduced bench clean python
.DELETE_ON_ERROR:

python:
	@test -n "$(VERSION)" || { echo "no usable Python: $(PYTHON)"; exit 1; }
	@echo "Python $(VERSION): $(PYTHON) ($(LINE) line)"

demo: python $(DEMO)/.installed
	$(DEMO)/bin/python benchmarks/demo.py

bench: python $(DEMO)/.installed
	$(DEMO)/bin/python benchmarks/bench.py

test: python lint $(ENV)/.installed
	$(MAKE) --no-print-directory unit upstream PYTHON=$(PYTHON)
	@echo "make test: all of it passed on Python $(VERSION) ($(LINE) line)"

TESTS ?= tests
unit: $(ENV)/.installed
	$(ENV)/bin/python -P -m pytest $(TESTS) -q -p no:cacheprovider -n 2 --dist loadfile

# Random programs on both twins: FUZZ_SECONDS, FUZZ_SEED. On the installed wheel, or on what `make develop` made.
FUZZ := -P -m pytest tests/behaviour/fuzz -q -s -p no:cacheprovider
fuzz: $(ENV)/.installed
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} $(ENV)/bin/python $(FUZZ)

fuzz-develop:
	$(DEV)/bin/python $(FUZZ)

# 100,000 calls in each of three ways, and 10,000 models that come and go: minutes.
memory: $(ENV)/.installed
	$(ENV)/bin/python -P tests/leaks/long.py

# Whether the random programs find faults: each of tests/planted is built into a copy, and has to be found.
planted: python
	$(PYTHON) tests/planted/run.py

# The suites of projects that use flax.nnx, under upstream and under the wheel of $(ENV).
downstream: $(ENV)/.installed
	$(ENV)/bin/python tests/downstream/run.py $(WHEELS)/flax-*.whl

upstream: $(ENV)/.installed
	$(ENV)/bin/python tests/upstream/run.py $(ENV)/bin/python --smoke
	$(ENV)/bin/python tests/upstream/run.py $(ENV)/bin/python

test-all:
	for version in 3.11 3.12 3.13; do \
	  $(MAKE) --no-print-directory test PYTHON=$$(sh fork/find_python.sh $$version) || exit 1; done
	for other in JAX=0.11.1 JAX=0.11.2 JAX=0.12.0 RELEASE=0.12.10 "RELEASE=0.12.9 JAX=0.11.1"; do \
	  $(MAKE) --no-print-directory unit upstream PYTHON=$$(sh fork/find_python.sh 3.13) $$other || exit 1; done

lint: .venv/lint/.installed
	.venv/lint/bin/ruff check .
	PATH="$(CURDIR)/.venv/lint/bin:$$PATH" cython-lint flax

build/constraints-$(LINE)-jax-$(JAX).txt: tests/constraints-$(LINE).txt
	mkdir -p build
	sed -E 's/^(jax|jaxlib)==.*/\1==$(JAX)/' $< > $@

# A wheel of this tree, built with the tools of fork/tools.txt and nothing else.
wheel: python $(WHEELS)/.built
	@ls $(WHEELS)/*.whl

$(WHEELS)/.built: $(SOURCES)
	$(PYTHON) -m venv --clear $(BUILD)
	$(BUILD)/bin/python $(PIP) install $(TOOLS)
	rm -rf $(WHEELS)
	$(BUILD)/bin/python $(PIP) wheel --no-build-isolation --no-deps -w $(WHEELS) .
	touch $@

# That wheel, in an environment with what the tests import.
$(ENV)/.installed: $(WHEELS)/.built $(CONSTRAINTS) tests/requirements.txt
	$(PYTHON) -m venv $(ENV)
	$(ENV)/bin/python $(PIP) install $(TOOLS)
	$(ENV)/bin/python $(PIP) install -c $(CONSTRAINTS) -r tests/requirements.txt
	$(ENV)/bin/python $(PIP) install -c $(CONSTRAINTS) --force-reinstall --no-deps $(WHEELS)/flax-*.whl
	$(ENV)/bin/python $(PIP) install -c $(CONSTRAINTS) $(WHEELS)/flax-*.whl
	$(ENV)/bin/python -m pip check
	touch $@

$(DEMO)/.installed: $(WHEELS)/.built benchmarks/requirements.txt
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python $(PIP) install --no-compile -r benchmarks/requirements.txt
	$(DEMO)/bin/python $(PIP) install --no-compile --force-reinstall --no-deps $(WHEELS)/flax-*.whl
	$(DEMO)/bin/python $(PIP) install --no-compile $(WHEELS)/flax-*.whl
	$(DEMO)/bin/python -m compileall -qq -j 0 -x /tests/ $(DEMO)/lib || true   # on all cores; pip takes one
	touch $@

.venv/lint/.installed: tests/requirements-lint.txt
	$(PYTHON) -m venv .venv/lint
	.venv/lint/bin/python $(PIP) install -r tests/requirements-lint.txt
	touch $@

# An environment that runs the checkout; each further call compiles what changed, in seconds. C warnings are
# errors, as they are where a change lands.
develop: python
	test -x $(DEV)/bin/python || $(PYTHON) -m venv $(DEV)
	test -e $(DEV)/.installed || $(DEV)/bin/python $(PIP) install $(TOOLS)
	test -e $(DEV)/.installed || $(DEV)/bin/python $(PIP) install -c $(CONSTRAINTS) -r tests/requirements.txt
	test -e $(DEV)/.installed || $(DEV)/bin/python $(PIP) install -c $(CONSTRAINTS) --no-build-isolation -e .
	touch $(DEV)/.installed
	FLAX_FAST_STRICT=1 $(DEV)/bin/python setup.py -q build_ext --inplace

# The same tests on a build with bounds, none and overflow checks and C assertions.
checked: python
	FLAX_FAST_CHECKED=1 $(MAKE) --no-print-directory unit PYTHON=$(PYTHON) KIND=$(VERSION)-checked

# What runs the compiled code: with the address and undefined-behaviour sanitizers, on a debug build of Python
# (Debian: python3-dbg, python3-venv), and in valgrind. Python's development mode is on throughout. An hour.
RUNNING := tests/behaviour tests/leaks tests/processes
DEBUG := $(shell command -v python3-dbg)
sanitize: export PYTHONDEVMODE := 1
sanitize: python
	FLAX_FAST_SANITIZED=1 $(MAKE) --no-print-directory .venv/test-$(VERSION)-sanitized/.installed \
	  PYTHON=$(PYTHON) KIND=$(VERSION)-sanitized
	sh tests/sanitize/preloaded.sh .venv/test-$(VERSION)-sanitized/bin/python -P -m pytest $(RUNNING) \
	  -q -p no:cacheprovider -n 2 --dist loadfile
	@test -n "$(DEBUG)" || { echo "no python3-dbg: install it (Debian: python3-dbg, python3-venv)"; exit 1; }
	FLAX_FAST_CHECKED=1 $(MAKE) --no-print-directory unit TESTS="$(RUNNING)" PYTHON=$(DEBUG) KIND=debug
	$(MAKE) --no-print-directory checked TESTS=tests/leaks PYTHON=$(PYTHON)
	PYTHONMALLOC=malloc valgrind --quiet --error-exitcode=1 --num-callers=20 --suppressions=tests/sanitize/others.supp \
	  .venv/test-$(VERSION)-checked/bin/python -P tests/sanitize/walks.py

wheels:
	for version in 3.11 3.12 3.13; do \
	  python=$$(sh fork/find_python.sh $$version 2>/dev/null) || continue; \
	  $(MAKE) --no-print-directory wheel PYTHON=$$python || exit 1; done

# Whether two builds of the latest commit, in two folders, are the same file.
COPIES := build/reproduced/one build/reproduced/in/another
reproduced: python
	rm -rf build/reproduced
	for copy in $(COPIES); do git clone --quiet . $$copy && \
	  $(MAKE) --no-print-directory -C $$copy wheel PYTHON=$(PYTHON) || exit 1; done
	sha256sum $(addsuffix /dist/*/*.whl,$(COPIES))
	cmp $(addsuffix /dist/*/*.whl,$(COPIES))

clean:
	rm -rf build dist upstream .venv flax.egg-info benchmarks/results
