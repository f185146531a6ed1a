"""Which shares of its peaks a device achieves, fitted to published throughputs of whole models.

    minimize sum over figures of log(predicted / published)^2 + small sums that hold what the
    figures do not tell: every share near what is usual, and those of like kinds near each other

in the logarithms of the shares, of one device in one precision. `leave_one_out` fits without one
model at a time, and predicts it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from experiments.predict.device import WORD_BYTES, Device, Figure
from experiments.predict.load_model import trace_model
from experiments.predict.step_trace import KINDS, StepTrace

USUAL = {
    True: (0.2, 0.25, 0.5, 0.35, 0.35, 1.5),
    False: (0.5, 0.8, 0.8, 0.5, 0.5, 1.5),
}
"""By whether matrix units compute: of `KINDS`, where no figure tells otherwise. Assumptions, near
what all devices with figures have in common; more than the memory's rate, since kernels are fused.
"""

_LIMITS = {
    "convolution": 0.95,
    "convolution_3x3": 2.25,
    "matrix": 0.95,
    "attention": 0.95,
    "recurrent": 0.95,
    "elementwise": 4.0,
}
"""No kernel passes its peak, but Winograd's 3x3 convolutions need up to 2.25 times fewer FLOPs, and
kernels that are fused move fewer bytes.
"""

LIKE = (("convolution_3x3", "convolution"), ("attention", "matrix"), ("recurrent", "matrix"))
_USUAL_WEIGHT, _LIKE_WEIGHT = 0.1, 0.1


def fit_shares(device: Device, figures: Sequence[Figure]) -> dict[str, float]:
    """The shares by kind that fit `figures`, all of one precision."""
    has_matrix_units = figures[0].precision in device.tensor_cores
    usual = np.log(USUAL[has_matrix_units])
    pairs = [(KINDS.index(one), KINDS.index(other)) for one, other in LIKE]

    def residuals(logs: np.ndarray) -> np.ndarray:
        by_kind: dict[str, float] = dict(zip(KINDS, np.exp(logs), strict=True))
        errors = [
            np.log(step_s(device, f, by_kind) * f.examples_per_s / f.batch_size) for f in figures
        ]
        moved = logs - usual
        like = [moved[one] - moved[other] for one, other in pairs]
        return np.array([*errors, *(_USUAL_WEIGHT * moved), *(_LIKE_WEIGHT * np.array(like))])

    limits = np.log([_LIMITS[kind] for kind in KINDS])
    if has_matrix_units:
        limits[KINDS.index("convolution_3x3")] = limits[KINDS.index("convolution")]
    logs = least_squares(residuals, usual, bounds=(-np.inf, limits)).x
    return {kind: float(np.exp(log)) for kind, log in zip(KINDS, logs, strict=True)}


def step_s(device: Device, figure: Figure, by_kind: Mapping[str, float]) -> float:
    """What a published step takes with these shares."""
    trace = trace_figure(figure)
    forward_s = device.seconds(trace.forward, figure.precision, by_kind).sum()
    if figure.forward_only:
        return float(forward_s)
    backward_s = device.seconds(trace.backward, figure.precision, by_kind).sum()
    optimizer_bytes = WORD_BYTES * figure.optimizer_words * trace.num_parameters
    return float(forward_s + backward_s + optimizer_bytes / device.memory_rate)


def leave_one_out(device: Device, figures: Sequence[Figure]) -> list[float | None]:
    """The relative error of each figure's throughput, predicted from those of other models; None
    where there are no others.
    """
    fits = {}
    for model in {figure.model for figure in figures}:
        others = [figure for figure in figures if figure.model != model]
        fits[model] = fit_shares(device, others) if others else None
    return [None if fits[f.model] is None else error(device, f, fits[f.model]) for f in figures]


def error(device: Device, figure: Figure, by_kind: Mapping[str, float]) -> float:
    """Of the throughput with these shares, relative to the published one."""
    return figure.batch_size / step_s(device, figure, by_kind) / figure.examples_per_s - 1


def trace_figure(figure: Figure) -> StepTrace:
    """The step that a figure is of."""
    words = {"model": figure.model} | {key: str(value) for key, value in figure.words.items()}
    return trace_model(words, figure.batch_size, fused_attention=figure.fused_attention)
