"""A run does without torch's compiler, and who compiles finds it."""

import os
import subprocess
import sys

from host.cores import THREADS

# In a process of its own: tests have the compiler already.
RUN = """
import sys
from pathlib import Path
from experiments.plan.compose import compose_config
from experiments.runs.run import run

words = ["algo=allreduce", "model=mlp", "model.hidden=[4]", "workers=2", "max_steps=2"]
words += ["backend=sim", "net=wan"]
for way in ("vmap", "loop"):
    config = compose_config([*words, f"cluster.stacking={way}"])
    assert run(config, Path(sys.argv[1], way)) == "completed"
print([name for name in sys.modules if name.startswith("torch._dynamo.") or name == "sympy"])
"""
DRY = """
import sys, torch
from bagua_algos.algorithms import AllReduce
from experiments.advise.map.sent import sent_of

sent = sent_of(AllReduce(), lambda p: torch.optim.Adam(p), [(4, 3)], 2)
assert sent.all_reduces
print([name for name in sys.modules if name.startswith("torch._dynamo.")])
"""
COMPILE = """
import inspect, sys, torch
from torch import nn
from experiments.plan.late_compiler import put_off_compiler

def trained(is_compiled):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    loss = lambda: model(torch.ones(4, 3)).square().sum()

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    step()
    if is_compiled:
        model.compile(backend="eager", fullgraph=True)
        step = torch.compile(step, backend="eager")
    step()
    step()
    return model.weight

put_off_compiler()
inspect.getmodule(trained)
plain = trained(is_compiled=False)
assert not [name for name in sys.modules if name.startswith("torch._dynamo.")]
assert torch.equal(trained(is_compiled=True), plain)
from torch._dynamo.utils import counters
assert counters["frames"]["ok"] > 1, counters
import torch._dynamo
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.__file__
put_off_compiler()
assert torch._dynamo.__file__
print("as ever")
"""


def said(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    one_core = os.environ | {THREADS: "1"}  # with more, a child trains
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=one_core)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


def test_a_simulated_run_imports_no_compiler(tmp_path):
    assert said(RUN, str(tmp_path)) == "[]"


def test_what_is_sent_is_worked_out_without_a_compiler():
    assert said(DRY) == "[]"


def test_whoever_compiles_finds_the_compiler():
    assert said(COMPILE) == "as ever"
