# Two commands do everything on a fresh machine: make quickstart, make test.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test check clean

quickstart: $(STAMP)
	$(BIN)/rlpipe +recipe=quickstart

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) outputs
