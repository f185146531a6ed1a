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
DEMO := results/demo/$(shell date +%Y-%m-%d_%H-%M-%S)

# Tests start hundreds of processes, which need not compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint bench chaos soak gpu-check docs clean

demo: .venv/installed
	$(BIN)/python -m experiments -m algo=torch_ddp,torch_ddp_bf16,allreduce,bytegrad net=slow_tcp \
	    hydra.sweep.dir=$(DEMO)
	$(BIN)/python -m experiments.compare $(DEMO)

# Two at a time, on however many cores: tests of networks measure times.
test: lint
	$(BIN)/pytest -n 2 --dist worksteal

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
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	PATH=$(BIN):$$PATH NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# torch first: pinned, so that nothing pulls another build of it.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch numpy
	$(BIN)/pip install --quiet -c constraints.txt -e '.[data,dev,report]'
	touch $@

clean:
	rm -rf .venv build results/runs results/demo
