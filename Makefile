# SPDX-License-Identifier: GPL-2.0-or-later
# `make demo` shows the whole flow on this machine; `make test` checks it against the real services.

# The system's Python where it is new enough: distributions build it with optimizations, without which, as pyenv builds by default,
# the same work takes a fifth longer.
PYTHON ?= $(shell for each in /usr/bin/python3 python3; do \
	$$each -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
# One target of a run installs, so that two at once do not: with what the tests need if one of the goals does.
INSTALLED := $(VENV)/installed$(if $(filter-out demo venv lock clean,$(MAKECMDGOALS)),-for-tests)
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# Most tests wait for processes: four at a time for each core, long ones first, each worker takes the next when it is done, and one
# more runs tests that start nothing meanwhile (testing/scheduling.py).
AT_ONCE := -n $(shell echo $$((4 * $$(nproc) + 1))) --dist loadscope --no-loadscope-reorder
# On a loaded machine a failed test of real processes runs a second time, three in all; the summary shows how each failed at first.
# Never: pure tests, and those that hunt rare faults (marked `hunt`); docs/decisions/second-look.md.
SECOND_LOOK := --reruns 1 --max-suite-reruns 3 --rerun-show-tracebacks
# The tests of `make check` start nothing: plain pytests at once take less than one with workers, which would import every test in
# each and pass each result over a socket. No one takes much longer than the others, so that none runs alone in the end. The other
# pure tests run in `make test`.
PURE = $(PYTEST) -q $(KEPT) -p no:xdist -p no:rerunfailures -m "not slow and not services and not processes and not more" \
	--hypothesis-profile=quick
CHECKS := check-events check-mirror check-notices check-house check-docs check-types check-style
TESTS_OF_check-events := tests/aggregator tests/status tests/words tests/log tests/outbox
TESTS_OF_check-mirror := tests/relay tests/mirror
TESTS_OF_check-notices := tests/notifier
TESTS_OF_check-house := tests/house
INSTALL := testing/install_debian.sh
# Tests make many small files: in memory if it has room and lets programs run, else where files are made anyway. A whole run needs
# 1 GB, a third of its time in the kernel less than on a disk.
MEMORY := $(shell df --output=avail --block-size=1G /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 >= 4' | grep -q . && \
	awk '/^MemAvailable/ && $$2 >= 6000000' /proc/meminfo | grep -q . && ! grep -q '^[^ ]* /dev/shm .*noexec' /proc/mounts && \
	echo /dev/shm)
# The files of one run stay, since they may lie in memory.
KEPT := -o tmp_path_retention_count=1
# What the documentation's site is made of; with the folders, from which a page may vanish (`docs` itself is a target).
DOCUMENTS := mkdocs.yml Dockerfile compose.yaml testing/pages.py tests/README.md README.md CHANGES.md CONTRIBUTING.md \
	$(shell find docs/. testing/theme notifier/messages/schemas pushlog/schemas)
# What `make check` types strictly: all but the tests.
TYPED := hgext/vcsreplicator pushlog hooks notifier testing

# Python keeps what it compiled: without that, each worker compiles all tests again, which takes 5 s.
unexport PYTHONDONTWRITEBYTECODE
# Hypothesis loads what other packages offer it: trio, which no test uses, as slowly as itself.
export HYPOTHESIS_NO_PLUGINS := 1

.SILENT:
.PHONY: demo venv test test-all test-versions faults mutants soak check $(CHECKS) format bench docs man dist deb lock clean

demo: venv
	$(BIN)/vcsreplicator demo

venv: $(INSTALLED)

# An environment, with the packages that every user needs, each with its hash.
$(VENV)/installed: requirements/install.txt pyproject.toml setup.py
	$(MAKE_ENVIRONMENT)
	$(PIP) install --require-hashes -r requirements/install.txt
	$(INSTALL_PROJECT)

# uv installs the 150 packages of the tests, those of every user among them, in 2 s, where pip takes a minute; Python compiles what
# is imported of them, less than half. uv reads none of pip's settings, so where it finds no packages, pip installs them.
$(VENV)/installed-for-tests: requirements/install.txt requirements/test.txt requirements/uv.txt pyproject.toml setup.py
	$(MAKE_ENVIRONMENT)
	$(PIP) install --require-hashes -r requirements/uv.txt && \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/test.txt || \
		$(PIP) install --require-hashes -r requirements/test.txt
	$(INSTALL_PROJECT)
	touch $(VENV)/installed

define MAKE_ENVIRONMENT
	echo "installing into $(VENV)"
	PYTHON=$(PYTHON) $(INSTALL) python
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef

# This project, editable: as a plain path, which halves the time that Python takes to start against setuptools' import finder.
define INSTALL_PROJECT
	PYTHONWARNINGS=ignore $(PIP) install --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	$(BIN)/python -m compileall -q hgext pushlog hooks notifier
	touch $@
endef

# The same kills each time, so that a run can be repeated; `test-all` draws others at every run.
test: $(VENV)/installed-for-tests
	PYTHON=$(BIN)/python $(INSTALL) services
	export TMPDIR=$${TMPDIR:-$(MEMORY)} VCSREPLICATOR_TEST_SEED=$${VCSREPLICATOR_TEST_SEED:-20261122}; \
	$(PYTEST) $(AT_ONCE) $(SECOND_LOOK) $(KEPT) -m "not slow" --hypothesis-profile=quarter $(TESTS)

test-all: $(VENV)/installed-for-tests
	PYTHON=$(BIN)/python $(INSTALL) services
	$(PYTEST) $(AT_ONCE) $(TESTS)

# The older versions of Mercurial too, each in an environment of its own (testing/versions); prints a table.
test-versions: $(VENV)/installed-for-tests
	$(BIN)/python -m testing.versions $(VERSIONS)

# `make faults SEED=7`: the campaign of a seed (tests/README.md); with `SEEDS=100` so many from there on. `make faults REAL=1` lets
# every fault strike real processes until each has struck, or for `SECONDS=600`, or until `STRIKES=1000`; `TOGETHER=8` at once. SEED
# repeats the schedule that another run printed.
# `make faults JUDGE=FILE` judges a history again, or several (JUDGE="FILE FILE"). With PAGE=1 either of the two writes the table
# of docs/reliability.md.
faults: $(VENV)/installed-for-tests
ifneq ($(REAL)$(JUDGE),)
	$(BIN)/python -m testing.faults.campaign $(if $(SEED),--seed $(SEED)) --seconds $(or $(SECONDS),0) \
		$(if $(STRIKES),--strikes $(STRIKES)) \
		$(if $(TOGETHER),--together $(TOGETHER)) $(if $(ONLY),--only $(ONLY)) $(JUDGE:%=--judge %) $(if $(PAGE),--page)
else
	export TMPDIR=$${TMPDIR:-$(MEMORY)}; $(BIN)/python -m testing.campaign --seed $(or $(SEED),1) --seeds $(or $(SEEDS),1)
endif

# `make mutants SEED=7 SAMPLE=300`: which changes of what decides no test near it notices; `ONLY=window` of one module.
mutants: $(VENV)/installed-for-tests
	export TMPDIR=$${TMPDIR:-$(MEMORY)}; $(BIN)/python -m testing.mutants --seed $(or $(SEED),1) --sample $(or $(SAMPLE),300) \
		--only "$(ONLY)"

# `make soak MINUTES=120 RATE=20`: pushes to a cluster on Kafka, and whether memory, files and latency stay flat.
soak: $(VENV)/installed-for-tests
	PYTHON=$(BIN)/python $(INSTALL) services
	$(BIN)/python -m testing.soak --minutes $(or $(MINUTES),120) --rate $(or $(RATE),20) \
		--repositories $(or $(REPOSITORIES),200)

# Style, types, tests and the documentation's site, side by side: a developer waits for the result.
check: $(VENV)/installed-for-tests
	$(MAKE) --no-print-directory --jobs --keep-going --output-sync $(CHECKS)

check-events check-mirror check-notices check-house:
	export TMPDIR=$${TMPDIR:-$(MEMORY)}; $(PURE) $(TESTS_OF_$@)

check-style:
	$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	$(BIN)/python -m tests.house.taste

check-types:
	$(BIN)/mypy $(TYPED)

# Nothing is built while no page has changed, as nothing is typed again.
check-docs: build/checked-documents

build/checked-documents: $(VENV)/installed-for-tests $(DOCUMENTS)
	$(BIN)/mkdocs build --strict
	touch $@

format: $(VENV)/installed-for-tests
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# `make bench` runs all, `make bench idle log` these.
ifeq (bench,$(firstword $(MAKECMDGOALS)))
CHOSEN := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
.PHONY: $(CHOSEN)
$(CHOSEN): bench
endif
bench: $(VENV)/installed-for-tests
	PYTHON=$(BIN)/python $(INSTALL) services
	$(BIN)/python -m testing.bench $(CHOSEN)

# The documentation as a site, in build/site. Without `--quiet`, with which MkDocs counts no warning, so that none would be an error.
docs: $(VENV)/installed-for-tests
	$(BIN)/mkdocs build --strict

# Manual pages of all verbs, for packagers.
man: $(VENV)/installed-for-tests
	$(BIN)/python -m testing.man_pages build/man

# A source distribution and the wheel made of it, in dist; the same bytes from the same commit. Outside a checkout, as in the build
# of the image, their files have the time of the release.
dist: $(VENV)/installed-for-tests
	umask 022; export SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || \
		date -d "$$(sed -n '0,/^ -- /s/^ -- .*>  //p' debian/changelog)" +%s)}; rm -rf dist; \
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' > /dev/null && \
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz

# The package of `debian`, in build/deb, for the Debian on which it is built.
deb: man dist
	$(INSTALL) debian
	rm -rf build/deb && mkdir -p build/deb/source/build
	tar -xf dist/*.tar.gz -C build/deb/source --strip-components=1 && cp -r build/man build/deb/source/build/
	cd build/deb/source && dpkg-buildpackage --build=binary --no-sign

# Newer versions within the bounds of pyproject.toml; read the difference before you commit it.
lock: $(INSTALLED)
	requirements/lock.sh $(BIN)/python

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
