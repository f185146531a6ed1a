"""What inductor makes of a distributed model: `python -m tests.bagua_algos.scripts.inductor 2`.

Prints the largest difference of any weight to the training that is not compiled, after 6 steps of 2
gloo workers. No test: a C++ compiler is needed, and 10 to 30 s.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import bagua_algos
from bagua_algos import Algorithm
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.gloo import fork_workers, results
from tests.bagua_algos.scripts.training import (
    ALGORITHMS,
    MakeOptimizer,
    Results,
    distributed,
    flat,
    make_model,
    train,
)


def run(algorithm: Algorithm, make_optimizer: MakeOptimizer, way: str) -> Tensor:
    torch.compiler.reset()
    model = make_model()
    if way == "before":
        model = torch.compile(model)
        assert isinstance(model, nn.Module)
    elif way == "in place":
        model.compile()
    model, optimizer = distributed(algorithm, make_optimizer, model)
    train(torch.compile(model) if way == "after" else model, optimizer)
    bagua_algos.release(model)
    return flat(model)


def compare(communicator: ProcessGroupCommunicator) -> Results:
    differences = {}
    for name, case in ALGORITHMS.items():
        eager = run(*case, "eager")
        for way in ("before", "after", "in place"):
            difference = (run(*case, way) - eager).abs().max().item()
            differences[f"{name}, compiled {way}"] = difference
    return differences


if __name__ == "__main__":
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # workers are forked
    with tempfile.TemporaryDirectory() as folder:
        code = fork_workers(compare, Path(folder), int(sys.argv[1]))
        for worker, differences in enumerate(results(Path(folder), int(sys.argv[1]))):
            for case, difference in differences.items():
                print(f"worker {worker}: {case}: {difference:.1e}")
    sys.exit(code)
