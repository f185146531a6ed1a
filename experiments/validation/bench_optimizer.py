"""What a fused optimizer saves: `python -m experiments.bench_systems optimizer`.

Steps of many small parameters, on the CPU by one thread or on a GPU, by torch's loop over them, its
`foreach=True`, its `fused=True` where it has that, and ours: with gradients as autograd leaves
them, and in the buckets of `distribute`. All take turns; milliseconds a step, the median of a
round. A GPU's step ends when the GPU has done it.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import bagua_algos
from bagua_algos.communication.loopback import LoopbackCommunicator

NUM_PARAMETERS = 500
NUM_STEPS = 20
SIZES = (64, 4096)
"""Elements of each parameter."""
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "SGD momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-3}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3}),
    "NAdam": (torch.optim.NAdam, {"lr": 1e-3}),
}
_HAVE_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def measure(name: str, size: int, device: str = "cpu") -> dict[str, float]:
    """Milliseconds a step of each way, medians of interleaved steps."""
    finish = torch.cuda.synchronize if device == "cuda" else _nothing
    cls, options = OPTIMIZERS[name]
    make: Any = cls
    ways: dict[str, Callable[[], object]] = {
        "loop": _plain(size, device, lambda p: make(p, **options, foreach=False)),
        "foreach=True": _plain(size, device, lambda p: make(p, **options, foreach=True)),
    }
    if issubclass(cls, _HAVE_FUSED):
        ways["fused=True"] = _plain(size, device, lambda p: make(p, **options, fused=True))
    ways["ours"] = _plain(size, device, lambda p: bagua_algos.fuse_optimizer(cls(p, **options)))
    distributed = _Model(size).to(device)
    ways["ours, in buckets"] = _distributed(distributed, cls(distributed.parameters(), **options))
    took_ms: dict[str, list[float]] = {way: [] for way in ways}
    for step in range(NUM_STEPS):
        for way, take in ways.items():
            finish()
            started_s = time.perf_counter()
            take()
            finish()
            if step > 1:  # the first ones make the states
                took_ms[way].append(1e3 * (time.perf_counter() - started_s))
    bagua_algos.release(distributed)
    return {way: statistics.median(values) for way, values in took_ms.items()}


class _Model(nn.Module):
    """Parameters, and nothing that they do but to have gradients."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(size) for _ in range(NUM_PARAMETERS))

    def forward(self) -> torch.Tensor:
        return torch.stack([w.sum() for w in self.weights]).sum()


def _nothing() -> None:
    """The CPU is done when a step returns."""


def _plain(
    size: int, device: str, make: Callable[[list[nn.Parameter]], Optimizer]
) -> Callable[[], object]:
    parameters = list(_Model(size).to(device).parameters())
    for parameter in parameters:
        parameter.grad = torch.randn(size, device=device)
    optimizer = make(parameters)
    return optimizer.step


def _distributed(model: _Model, optimizer: Optimizer) -> Callable[[], object]:
    communicator = LoopbackCommunicator(1)
    bagua_algos.distribute(model, optimizer, bagua_algos.AllReduce(), communicator)
    model().backward()
    return optimizer.step
