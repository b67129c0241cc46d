# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
#   TORCH_INDEX=URL   take torch from this package index, such as PyTorch's own one of CPU builds
#   PYTHON=python3.12 make the environment with this Python (3.11 to 3.13)
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TORCH := torch==$(shell sed -n 's/^torch==//p' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: quickstart test check check-tinker clean

quickstart: $(INSTALLED)
	$(BIN)/rlpipe +recipe=quickstart

test: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Trains on a real Tinker-compatible server, whose environment (Python 3.12, 7 GB) is made in the
# user's cache at the first call.
check-tinker: $(INSTALLED)
	$(BIN)/pytest -m tinker --durations=10 -rs tests/tinker

# Torch comes first and by itself: as a dependency of another package it would be the newest one.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) --no-print-directory torch
	$(PIP) install -c constraints.txt -e '.[trl,local,coreweave,tinker,dev]'
	touch $@

.PHONY: torch
torch:
ifdef TORCH_INDEX
	$(PIP) install '$(TORCH)' --index-url '$(TORCH_INDEX)'
else
	@$(PIP) install --dry-run --report $(VENV)/torch.json '$(TORCH)'
	@if grep -q '"nvidia' $(VENV)/torch.json; then \
	  echo 'note: this installs torch with CUDA, several gigabytes that a CPU run does not need.'; \
	  echo '      For the CPU build stop here, and give the index of PyTorch'"'"'s CPU builds:'; \
	  echo '      make TORCH_INDEX=...'; fi
	$(PIP) install '$(TORCH)'
endif

clean:
	rm -rf $(VENV) outputs
