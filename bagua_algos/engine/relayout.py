"""A state of one layout of buckets, taken up by an engine with another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.engine.bucket import Bucket, Move, lay_out

LAYOUT = "layout"
BUCKETS = "layout of buckets"

Layout = list[list[tuple[int, int]]]
"""Of each bucket: each parameter's number among all, and the column at which it begins."""


def layout_of(buckets: Sequence[Bucket], parameters: Sequence[nn.Parameter]) -> Layout:
    """Where `parameters`, all that train, are."""
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    return [
        [(numbers[p], start) for p, start in zip(b.parameters, b.starts, strict=True)]
        for b in buckets
    ]


def state_here(
    state_dict: Mapping[str, Any],
    algorithm: Algorithm,
    context: Context,
    parameters: Sequence[nn.Parameter],
) -> Mapping[str, Any]:
    """The state of an engine whose buckets were others, as one of the context's buckets; as it is
    where that cannot be: `load_state_dict` then refuses it.
    """
    saved = state_dict.get(LAYOUT)
    if saved in (None, layout_of(context.buckets, parameters)) or algorithm.depends_on_buckets:
        return state_dict
    if sorted(number for group in saved for number, _ in group) != [*range(len(parameters))]:
        return state_dict
    groups = [tuple(parameters[number] for number, _ in group) for group in saved]
    phases = {parameters[number]: start for group in saved for number, start in group}
    of = state_dict["of"]
    world_size = context.communicator.world_size
    meta = torch.device("meta")
    before = lay_out(groups, phases, world_size=world_size, device=meta)
    if of.get(BUCKETS) != described(before) or len(context.communicator.ranks) > 1:
        return state_dict
    moved = replace(context, buckets=before, state=state_dict["state"])
    state = algorithm.move_state(moved, Move(before, context.buckets))
    return {**state_dict, "state": state, "of": {**of, BUCKETS: described(context.buckets)}}


def described(buckets: Sequence[Bucket]) -> list[tuple[int, str]]:
    """Sizes and types of buckets, in words for errors."""
    return [(bucket.numel, str(bucket.gradients.dtype)) for bucket in buckets]
