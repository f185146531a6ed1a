"""The state that `torch.optim.Adam` and `AdamW` keep of a bucket's parameters, as flat tensors.

Shape suffixes: w workers held by this process, n elements of a bucket with its padding.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.parameter_groups import group_of

ParameterState = dict[str, Tensor]
"""`step`, `exp_avg` and `exp_avg_sq` of one parameter."""


def num_steps(parameter: nn.Parameter, optimizer: Optimizer) -> int:
    """Adam's count of the steps of `parameter`: those in which it had a gradient."""
    return int(optimizer.state.get(parameter, {}).get("step", 0))


def is_known(parameter: nn.Parameter, optimizer: Optimizer) -> bool:
    """Whether the optimizer has a state of `parameter`, though it be of no step."""
    return "step" in optimizer.state.get(parameter, {})


def flat_moments(bucket: Bucket, optimizer: Optimizer) -> tuple[Tensor, Tensor]:
    """First and second moments of all parameters of `bucket`, `[w, n]` in float32 at least; zero
    where Adam has none.
    """
    return _flat(bucket, optimizer, "exp_avg"), _flat(bucket, optimizer, "exp_avg_sq")


def states_of(
    bucket: Bucket,
    optimizer: Optimizer,
    steps: int,
    m: Tensor,
    v: Tensor,
    resting: Collection[int] = (),
) -> dict[nn.Parameter, ParameterState]:
    """What Adam would keep of each parameter of `bucket` after so many steps, in the parameter's
    type; `m` and `v` are its moments, `[w, n]`. Those of the numbers `resting` have taken no step.
    """
    groups, states = group_of(optimizer), {}
    views = zip(bucket.parameters, bucket.views(m), bucket.views(v), strict=True)
    for number, (parameter, exp_avg, exp_avg_sq) in enumerate(views):
        group, own_steps = groups[parameter], 0 if number in resting else steps
        if not own_steps:
            exp_avg, exp_avg_sq = torch.zeros_like(exp_avg), torch.zeros_like(exp_avg_sq)
        device = parameter.device if group.get("capturable") or group.get("fused") else "cpu"
        states[parameter] = {
            "step": torch.tensor(own_steps, dtype=torch.float32, device=device),
            "exp_avg": exp_avg.to(parameter.dtype, copy=True),
            "exp_avg_sq": exp_avg_sq.to(parameter.dtype, copy=True),
        }
    return states


def give(optimizer: Optimizer, states: Mapping[nn.Parameter, ParameterState]) -> None:
    """Put `states` into the optimizer."""
    for parameter, state in states.items():
        optimizer.state[parameter] = state


def holds(optimizer: Optimizer, states: Mapping[nn.Parameter, ParameterState]) -> bool:
    """Whether the optimizer's state is equal to `states`, bit for bit."""
    return all(_equal(optimizer.state.get(p, {}), state) for p, state in states.items())


def drop(parameters: Iterable[nn.Parameter], optimizer: Optimizer) -> None:
    """Take what it keeps of `parameters` from the optimizer."""
    for parameter in parameters:
        optimizer.state.pop(parameter, None)


def _equal(own: Mapping[str, Any], expected: ParameterState) -> bool:
    return own.keys() >= expected.keys() and all(
        own[name].dtype == value.dtype and torch.equal(own[name].to(value.device), value)
        for name, value in expected.items()
    )


def _flat(bucket: Bucket, optimizer: Optimizer, name: str) -> Tensor:
    dtype = torch.promote_types(bucket.weights.dtype, torch.float32)
    flat_wn = torch.zeros_like(bucket.weights, dtype=dtype)
    for parameter, view in zip(bucket.parameters, bucket.views(flat_wn), strict=True):
        state = optimizer.state.get(parameter, {})
        if name in state:
            view.copy_(state[name])
    return flat_wn
