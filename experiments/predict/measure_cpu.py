"""This machine's CPU as a device of predictions: its peaks, and throughputs of whole models, of one
thread, in seconds of a processor's time, so that other programs disturb it little.

    python -m experiments.devices --measure cpu.yaml
    python -m experiments.predict model=resnet50 algo=bytegrad net=lan_1g workers=8 device=cpu.yaml

The peak is what large matrix products achieve, the memory's rate what a copy does. A batch is of
zeros: what an operation takes does not hang on its numbers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from experiments.predict.device import Device, Figure
from experiments.predict.load_model import make_model
from experiments.predict.shares_table import DeviceFit, fits_of
from experiments.predict.trace import loss_of
from host.environment import environment

CASES: Sequence[tuple[str, int, dict[str, Any]]] = (
    ("vgg16", 1, {}),
    ("resnet50", 2, {}),
    ("resnext101", 1, {}),
    ("bert_base", 1, {}),
    ("gpt2", 1, {"tokens": 128}),
    ("lstm", 8, {}),
)
"""Model, batch size, and more words."""

MATRIX = 2048
COPIED_BYTES = 2**28
NUM_REPEATS = 3


def measure(report: Callable[[str], None] = lambda line: None) -> DeviceFit:
    """The device, with shares that are fitted to its figures. Takes half a minute of a processor.

    Its link inside a node is a copy in memory, there and back.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        report("matrix products and copies")
        memory_gb_per_s = 2 * COPIED_BYTES / _copying_s() / 1e9
        peak_tflops = 2 * MATRIX**3 / _multiplying_s() / 1e12
        figures = []
        for model, batch_size, words in CASES:
            report(model)
            figures.append(_figure(model, batch_size, words))
    finally:
        torch.set_num_threads(threads)
    here = environment()
    device = Device(
        device=f"one core of {here['cpu']}",
        source=f"measured {here['started'][:10]}, torch {here['packages']['torch']}",
        memory_gb_per_s=_round(memory_gb_per_s),
        nvlink_gb_per_s=None,
        pcie_gb_per_s=_round(memory_gb_per_s / 4),
        peak_tflops={"float32": _round(peak_tflops)},
        tensor_cores=(),
        figures=tuple(figures),
        shares={},
    )
    [fit] = fits_of("cpu", device, "measured")
    return fit


def plain(fit: DeviceFit) -> dict[str, Any]:
    """What `Device.load` reads."""
    values = asdict(replace(fit.device, shares={}))
    values["figures"] = [
        {key: value for key, value in figure.items() if value not in ({}, 0, False)}
        for figure in values["figures"]
    ]
    return values | {"tensor_cores": [], "shares": {fit.precision: fit.entry()}}


def _figure(name: str, batch_size: int, words: dict[str, Any]) -> Figure:
    texts = {"model": name} | {key: str(value) for key, value in words.items()}
    _, model, inputs = make_model(texts, batch_size, "cpu")
    positional = [x for key, x in inputs.items() if not key]
    named = {key: x for key, x in inputs.items() if key}

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model(*positional, **named)).backward()

    return Figure(
        model=name,
        precision="float32",
        batch_size=batch_size,
        examples_per_s=_round(batch_size / _processor_s(step)),
        words=words,
        fused_attention=True,
        source="measured by python -m experiments.devices --measure",
    )


def _multiplying_s() -> float:
    a = torch.ones(MATRIX, MATRIX)
    out = torch.empty_like(a)
    return _processor_s(lambda: torch.mm(a, a, out=out))


def _copying_s() -> float:
    source = torch.ones(COPIED_BYTES // 4)
    target = torch.empty_like(source)
    return _processor_s(lambda: target.copy_(source))


def _processor_s(work: Callable[[], object]) -> float:
    """Of the least disturbed repeat, after one that warms up."""
    work()
    took_s = []
    for _ in range(NUM_REPEATS):
        before_s = time.process_time()
        work()
        took_s.append(time.process_time() - before_s)
    return min(took_s)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
