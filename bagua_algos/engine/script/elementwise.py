"""Optimizers that treat every element by itself, and those that do not.

Simulated workers' weights are one tensor `[N, ...]`, and a fused optimizer's many parameters are
one. A norm, a factorization or a line search over it would mix what does not belong together,
silently. So an optimizer is tried: on several tensors, and on their elements in one. For simulated
workers also on each tensor by itself: what looks at all of them together mixes workers, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bagua_algos.optimizer_trial import Trial

NOT_ELEMENTWISE = ("LAMB", "LARS", "LBFGS", "Adafactor", "Muon", "Shampoo", "SOAP")

_SHAPES = ((3, 5), (37,), (1,), (2, 3, 4), (3, 2, 3, 3), (2, 1, 2, 2, 2), (60, 50), (5001,))
_SCALES = (1.0, 1e-3, 30.0, 0.1, 5.0, 0.01, 1.0, 0.3)
"""Of the tensors: whatever looks at norms, sizes or dimensions sees different ones. All together
are more than the 4,096 elements from which 8-bit optimizers act otherwise, and so is one.
"""
_NUM_STEPS = 8
_ROW = 40
"""Elements of each row of a tensor whose rows lie apart."""
_ANY_VALUE = ("params", "lr", "initial_lr")
"""Options whose value makes no other update of it."""


def check_elementwise(optimizer: Optimizer, num_held: int) -> None:
    """Raise `ValueError` where weights of several workers are one tensor to an optimizer that
    looks at whole tensors, or takes what lies between their rows for their own.
    """
    if num_held == 1:
        return
    reason = why_not_elementwise(optimizer, alone=True)
    if reason is not None:
        raise ValueError(
            f"{type(optimizer).__name__} looks at whole tensors, and {num_held} simulated workers' "
            f"weights are one tensor, which it would mix ({reason}): choose an "
            "optimizer that treats every element by itself, such as SGD or AdamW, or real workers"
        )
    if not all(_sees_gaps(optimizer, *one) for one in _examples(optimizer, finely=True)):
        raise ValueError(
            f"{type(optimizer).__name__} overlooks gaps between the rows of a tensor, and "
            f"{num_held} simulated workers' weights are such rows, which it would mix: leave out "
            "fused=True, or choose another optimizer, such as SGD or AdamW, or real workers"
        )


def why_not_elementwise(
    optimizer: Optimizer, *, exactly: bool = False, alone: bool = False
) -> str | None:
    """Why the optimizer, as it is set, does not treat every element by itself; None: it does.

    Kernels may round an element by its place in a tensor, as torch's do for bfloat16 and with
    fused=True: `exactly` counts that, too. With `alone`, each tensor has to change as it would if
    there were no others. The optimizer takes some steps with tensors of its parameters' type and
    device, of each one, and of float32 where that is finer; neither its parameters, its state nor
    torch's random numbers change.
    """
    names = {cls.__name__.lower() for cls in type(optimizer).__mro__}
    if names & {name.lower() for name in NOT_ELEMENTWISE}:
        return "it is known to look at whole tensors"
    if any(isinstance(value, Optimizer) for value in vars(optimizer).values()):
        return "it is around another optimizer"
    tried = set()
    for group, example in _examples(optimizer, finely=not exactly):
        options = {name: group[name] for name in sorted(group) if name not in _ANY_VALUE}
        kind = repr((options, example.dtype, example.device))
        if kind in tried:
            continue
        reason = _try(optimizer, group, example, exactly)
        if reason is None and alone:
            reason = _try_alone(optimizer, group, example)
        if reason is not None:
            return reason
        tried.add(kind)
    return None


def _examples(optimizer: Optimizer, *, finely: bool) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Each group, with a tensor of each type and device that its parameters have; `finely`: also
    one of float32, in which small steps show that 16 bits round away.
    """
    for group in optimizer.param_groups:
        numbers = [p for p in group["params"] if p.is_floating_point() or p.is_complex()]
        own = {(p.dtype, p.device): None for p in numbers}
        narrow = [(dtype, device) for dtype, device in own if finely and dtype.itemsize < 4]
        for dtype, device in own | {(torch.float32, device): None for _, device in narrow}:
            yield group, torch.empty(0, dtype=dtype, device=device)


def _sees_gaps(optimizer: Optimizer, group: dict[str, Any], example: Tensor) -> bool:
    """Whether steps leave alone what lies between the rows of a tensor, and change the rows as if
    nothing did. torch's kernels with fused=True count on tensors without gaps.
    """
    numbers = torch.Generator().manual_seed(0)
    weights, *gradients = _draw(numbers, 1 + _NUM_STEPS, 2, _ROW).to(example)
    dense, with_gaps = (Trial(optimizer, group, [weights]) for _ in range(2))
    storage = torch.zeros(2, 2 * _ROW, dtype=example.dtype, device=example.device)
    rows, gaps = storage.split(_ROW, 1)
    with_gaps.parameters[0].data = rows.copy_(weights)
    with torch.enable_grad():
        for gradient in gradients:
            dense.step([gradient])
            with_gaps.step([gradient])
    is_alike = _agree(rows, dense.parameters[0].detach(), 1 + dense.largest[0])
    return is_alike and not gaps.any()


def _try(optimizer: Optimizer, group: dict[str, Any], example: Tensor, exactly: bool) -> str | None:
    with _trying(example):
        weights, *gradients = _drawn(example)
        parts = Trial(optimizer, group, weights)
        whole = Trial(optimizer, group, [_flat(weights)])
        try:
            for gradient in gradients:
                parts.step(gradient)
                whole.step([_flat(gradient)])
        except Exception as error:
            return _failed(error)
    return parts.oddity or _difference(parts, whole, _flat(weights), exactly)


def _try_alone(optimizer: Optimizer, group: dict[str, Any], example: Tensor) -> str | None:
    """Gradients agree about the way, or a distance that steps follow from would not grow."""
    with _trying(example):
        weights, way, *gradients = _drawn(example)
        beside = Trial(optimizer, group, weights)
        alone = [Trial(optimizer, group, [weight]) for weight in weights]
        try:
            for gradient in gradients:
                agreeing = [a + b for a, b in zip(way, gradient, strict=True)]
                beside.step(agreeing)
                for trial, own in zip(alone, agreeing, strict=True):
                    trial.step([own])
        except Exception as error:
            return _failed(error)
    pairs = zip(beside.parameters, (trial.parameters[0].detach() for trial in alone), strict=True)
    if all(_agree(ours.detach(), own, _finite(own.abs()).amax()) for ours, own in pairs):
        return None
    return "it looks at other tensors, too: it changes a tensor otherwise where there are none"


def _agree(ours: Tensor, own: Tensor, largest: Tensor) -> bool:
    """Whether they differ by rounding of what has been as large as `largest`, or both are no
    numbers any more.
    """
    rounding = _NUM_STEPS * torch.finfo(own.dtype).eps
    widest = torch.complex128 if own.is_complex() else torch.float64
    apart = (ours.to(widest) - own.to(widest)).abs()
    is_near = apart <= rounding * _finite(largest).double()
    return bool((is_near | (ours == own) | (ours.isnan() & own.isnan())).all())


def _finite(x: Tensor) -> Tensor:
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@contextmanager
def _trying(example: Tensor) -> Iterator[None]:
    """Within, gradients are computed, and what is drawn, nobody misses afterwards."""
    cuda = [example.device] if example.is_cuda else []
    with torch.random.fork_rng(devices=cuda), torch.enable_grad():
        yield


def _failed(error: Exception) -> str:
    first = str(error).partition("\n")[0]
    return f"a trial of it fails ({type(error).__name__}{': ' * bool(first)}{first})"


def _rounds_by_place(x: Tensor) -> bool:
    """Whether torch's kernels round elements of its type otherwise where they fill no vector. It is
    so of few of them, which a trial may not meet.
    """
    return x.dtype.itemsize < 4 and x.device.type == "cpu"


def _difference(parts: Trial, whole: Trial, before: Tensor, exactly: bool) -> str | None:
    apart, together = _flat([p.detach() for p in parts.parameters]), whole.parameters[0].detach()
    if apart.equal(before):
        return "it changes nothing in a trial of it"
    if not apart.isfinite().any():
        return "it comes to no numbers in a trial of it"
    if not _agree(together, apart, 1 + _flat(parts.largest)):
        return "it changes elements otherwise where they are parts of a larger tensor"
    if exactly and (_rounds_by_place(apart) or not torch.equal(apart, together)):
        return f"it rounds some elements of {apart.dtype} by their place in a tensor"
    return _difference_of_states(parts, whole) if exactly else None


def _difference_of_states(parts: Trial, whole: Trial) -> str | None:
    state = whole.state_of(0)
    states = [parts.state_of(index) for index in range(len(parts.parameters))]
    for name, value in state.items():
        own = [one.get(name) for one in states]
        if not isinstance(value, Tensor):
            are_same = all(type(one) is type(value) and one == value for one in own)
        elif value.dim() == 0:
            are_same = all(isinstance(one, Tensor) and one.equal(value) for one in own)
        else:
            tensors = [one for one in own if isinstance(one, Tensor)]
            shapes = [parameter.shape for parameter in parts.parameters]
            are_same = [one.shape for one in tensors] == shapes and _flat(tensors).equal(value)
        if not are_same:
            return f"what it keeps as {name!r} is not that of each element by itself"
    if any(one.keys() != state.keys() for one in states):
        return "it keeps something else of some tensors than of others"
    return None


def _drawn(example: Tensor) -> list[list[Tensor]]:
    """Weights, and the gradients of each step."""
    numbers = torch.Generator().manual_seed(0)
    return [_tensors(numbers, example) for _ in range(1 + _NUM_STEPS)]


def _tensors(numbers: torch.Generator, example: Tensor) -> list[Tensor]:
    def draw(*shape: int) -> Tensor:
        drawn = _draw(numbers, *shape)
        return torch.complex(drawn, _draw(numbers, *shape)) if example.is_complex() else drawn

    drawn = (draw(*shape) for shape in _SHAPES)
    return [(s * x).to(example) for s, x in zip(_SCALES, drawn, strict=True)]


def _draw(numbers: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=numbers, dtype=torch.float32, device="cpu")


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
