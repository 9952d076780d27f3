# Everything a new clone needs; each target sets the environment up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: lock sbom setup demo test times test-all test-flower test-flower-core test-soak fuzz check lint types docs bench bench-peers clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing Coterie and all that it needs into $(VENV); PyTorch is most of it"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --constraint constraints.txt --editable '.[flower,images,onnx,transformers,dev]'
	touch $@

demo: setup
	$(BIN)/coterie run

# Compiled modules are kept, whatever the shell says: tests start processes, and each would compile them again.
export PYTHONDONTWRITEBYTECODE :=

# On two cores; `worksteal` keeps the tests of a file, which share what takes long to make, in one process.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# All but what is slow (tests/slow.txt); of the fuzz tests' inputs a tenth, and without the plugin that runs notebooks.
test: setup
	FUZZ=0.1 $(PYTEST) -p no:nbmake -m "not slow"

# Measure all tests, and write down which of them `make test` leaves out (tests/slow.txt).
times: setup
	mkdir -p build
	rm -f build/times
	-TEST_TIMES=$(CURDIR)/build/times $(PYTEST) -m "not soak" tests
	$(BIN)/python tests/slow.py build/times

# The notebooks too, each in a kernel of its own; not what has passed on this very code (tests/.verified).
test-all: setup
	if $(BIN)/python tests/verified.py soak; \
	then $(PYTEST) --nbmake -m "not soak" tests docs/notebooks; \
	else $(PYTEST) --nbmake tests docs/notebooks; fi

# Real Flower processes on this machine, with Debian's nginx; commit the note that it leaves when all have passed.
test-flower: setup
	COTERIE_REAL=1 $(BIN)/python -m pytest tests/deploy/flower/test_real_*.py --durations=0
	$(BIN)/python tests/verified.py flower --write

# The longest of the others; commit the note.
test-soak: setup
	$(PYTEST) -m soak --durations=20
	$(BIN)/python tests/verified.py soak --write

# The core of them: three silos, TLS and keys, five methods as in simulation.
test-flower-core: setup
	COTERIE_REAL=1 $(BIN)/python -m pytest tests/deploy/flower/test_real_core.py

# The documentation as a site in build/site, which opens from the folder; links that lead nowhere are errors.
docs: setup
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The fuzz tests on inputs that no run before has seen, ten times as many (FUZZ=100 make fuzz: a hundred times).
fuzz: setup
	FUZZ=$${FUZZ:-10} $(PYTEST) tests/fuzz

# What deployed parties install, by hashes (asks the package index), and its bill of materials, build/sbom.cdx.json.
lock: setup
	$(BIN)/python .ci/supply_chain.py lock

sbom: setup
	$(BIN)/python .ci/supply_chain.py sbom

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

check: lint types test-all

bench: setup
	$(BIN)/python bench/speed.py

# Other libraries, each in an environment of its own (4.3 GB in all); one that does not install is named and left out.
bench-peers: setup
	-$(BIN)/python bench/peers/install.py
	$(BIN)/python bench/peers/compare.py

clean:
	rm -rf $(VENV) runs build *.egg-info
