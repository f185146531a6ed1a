# make demo    real training over a shaped network: one table, one plot
# make test    format, lint, types, import directions and all tests
# make bench   speed, printed with its spread
# make chaos N=100   commands that are killed, stopped, cut off, and run out of disk and memory
# make soak MINUTES=120   a sweep over all algorithms: is what lives long flat?
# make gpu-check   all that needs a GPU, in 8 minutes, and NCCL over slow links, in 24: results/gpu/DEVICE.json, a table
# make docs    the documentation as a site: build/site/index.html
# Each makes .venv from nothing where it is missing.

PYTHON ?= python3
BIN := .venv/bin
PINNED := $(BIN)/pip install --quiet --require-hashes
DEMO := results/demo/$(shell date +%Y-%m-%d_%H-%M-%S)

# Tests start hundreds of processes, which need not compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint compiled bench chaos soak gpu-check docs clean

demo: .venv/installed
	$(BIN)/python -m experiments -m algo=torch_ddp,torch_ddp_bf16,allreduce,bytegrad net=slow_tcp \
	    hydra.sweep.dir=$(DEMO)
	$(BIN)/python -m experiments.compare $(DEMO)

# Three at a time, on however many cores: tests of networks measure times, and wait for most of them.
test:
	$(MAKE) --jobs 2 lint compiled
	$(BIN)/pytest -n 3 --dist worksteal

# Else each of the three would compile all tests for itself. What is wrong with them pytest says itself.
compiled: .venv/installed
	@$(BIN)/pytest --collect-only --quiet >/dev/null || true

lint: .venv/installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/basedpyright
	$(BIN)/lint-imports

bench: .venv/installed
	$(BIN)/python -m experiments.bench
	$(BIN)/python -m experiments.bench_algorithms
	$(BIN)/python -m experiments.bench_algorithms --gpt
	$(BIN)/python -m experiments.bench_simulation
	$(BIN)/python -m experiments.bench_systems
	$(BIN)/python -m netsim.bench
	$(BIN)/python -m kernels.bench

chaos: .venv/installed
	$(BIN)/python -m tests.chaos --count $(or $(N),100) $(if $(TABLE),--table $(TABLE))

soak: .venv/installed
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),120)

gpu-check: .venv/installed
	$(BIN)/python -m experiments.gpu_check

docs: .venv/installed
	$(PINNED) -r requirements/docs.txt
	PATH=$(BIN):$$PATH NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Versions and hashes are those of requirements/, which .ci/pin writes. torch first, without CUDA where
# there is such a build. setuptools comes with it, and hydra's parser, which has no wheel, is built by that.
.venv/installed: pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -m venv .venv
	$(PINNED) -r requirements/torch-cpu.txt || \
	    { echo "No CPU build of torch for this Python: PyPI's, which brings CUDA along."; \
	    $(PINNED) -r requirements/torch.txt; }
	$(PINNED) --no-build-isolation --use-pep517 -r requirements/install.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf .venv build results/runs results/demo
