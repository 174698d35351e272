# Everything sets itself up: a fresh clone needs only Python 3.11, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo picture test bench lint browser test-slow accept clean

demo: $(READY)
	$(BIN)/weft demo

# The picture in README.md; its figures are printed.
picture: $(READY)
	$(BIN)/python -m bench.timelines docs/timeline.svg

test: lint browser
	$(BIN)/pytest -n 3 --dist loadgroup

bench: picture
	$(BIN)/python -m bench.foundation
	$(BIN)/python -m bench.simulator
	$(BIN)/python -m bench.combine --layers 1 --workloads gpt2_xl_ddp,llama3_8b_fsdp --no-speed
	$(BIN)/python -m bench.speed --layers 2 --depths 1,2
	$(BIN)/python -m bench.quality --layers 2 --limits +0%,+5%,+20% --machines h100-ib400

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of the report's page need Chromium. Where it cannot be had, they are skipped with a message.
browser:
	@command -v chromium > /dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
		&& apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium > /dev/null; } \
		|| echo "there is no Chromium, and it cannot be installed: the tests of the report's page will be skipped"

# Hours: the property tests with 10,000 cases each, and every way of training in every mode.
test-slow: $(READY)
	$(BIN)/pytest -n 2 --hypothesis-profile=slow -m hypothesis
	$(BIN)/pytest -m slow

# Rewrite the expected output of the goldens; read the diff before you commit it.
accept: $(READY)
	$(BIN)/pytest tests/test_golden.py --accept

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
