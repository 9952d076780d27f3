# Everything a new clone needs; each target sets the environment up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-flower check lint types bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[flower,images,onnx,dev]'
	touch $@

demo: setup
	$(BIN)/coterie run

test: setup
	$(BIN)/python -m pytest -n 2

# Real Flower processes on this machine: about 25 minutes, needs Debian's nginx.
test-flower: setup
	COTERIE_REAL=1 $(BIN)/python -m pytest tests/flower

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

check: lint types test

bench: setup
	$(BIN)/python bench/speed.py

clean:
	rm -rf $(VENV) runs build *.egg-info
