"""The engine of one real or several stacked workers, as scripts and the app have it: its optimizer
is fused where that changes no bit, and how it communicates is tuned where that is asked for.
"""

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from bagua_algos.autotune.order import Order, choose_order
from bagua_algos.autotune.scope import Scope, scope
from bagua_algos.autotune.tuner import Tuner, Tuning
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import DEFAULT_BUCKET_BYTES, Engine
from bagua_algos.fused.fuse import fuse_in


def make_engine(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: Algorithm,
    communicator: Communicator,
    *,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    autotune: bool = False,
    agree: bool = False,
    **options: Any,
) -> Engine:
    """Hang `algorithm` on `model` and `optimizer`; `options` are those of `Engine`. If stacked
    workers `agree` in their gradients, the optimizer steps one row for all.

    With `autotune` all-reduces of three workers and more add up in an order that does not depend on
    buckets and streams, that of `pattern="direct"`, unless the pattern given is faster (`order.py`
    measures that). Warns where nothing can be tuned. Raises `ValueError` where workers are
    simulated.
    """
    own = _scope(model, algorithm, communicator) if autotune else None
    engine = Engine(
        *(model, optimizer, algorithm, communicator),
        bucket_bytes=bucket_bytes,
        may_move=own is not None and own.tunes_buckets,
        fuse=partial(fuse_in, agree=agree),
        **options,
    )
    if own is not None:
        try:
            sized = bucket_bytes if own.tunes_buckets else None
            order = choose_order(engine, sized) if own.tunes_lanes else Order(is_fixed=False)
        except BaseException:
            engine.close()
            raise
        engine.listener = Tuner(engine, own, order, bucket_bytes)
    return engine


def tuning_of(engine: Engine) -> Tuning | None:
    """What autotuning of an engine has come to; None where it was not asked for."""
    return engine.listener.tuning if isinstance(engine.listener, Tuner) else None


def _scope(model: nn.Module, algorithm: Algorithm, communicator: Communicator) -> Scope:
    if not isinstance(communicator, ProcessGroupCommunicator):
        raise ValueError(
            "autotune=True measures real workers, whose communicator is a "
            f"ProcessGroupCommunicator, not a {type(communicator).__name__}: leave it out"
        )
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    own = scope(algorithm, communicator, dtypes)
    if not own.tunes_lanes and communicator.world_size > 1:
        warnings.warn(f"autotune: {own.left_out[0]}", stacklevel=4)
    return own
