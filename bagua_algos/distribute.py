"""`distribute`: one line in a training script, around an unmodified model and optimizer."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.amp import GradScaler

from bagua_algos.arguments import (
    check_algorithm,
    check_communicator,
    check_limits,
    check_scaler,
)
from bagua_algos.autotune.make_engine import make_engine, tuning_of
from bagua_algos.autotune.tuner import Tuning
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.connections.choice import with_shared_memory
from bagua_algos.communication.patterns import Pattern, with_pattern
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.streams import NumStreams, with_streams
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import (
    DEFAULT_BUCKET_BYTES,
    DEFAULT_TIMEOUT_S,
    Engine,
    check_can_train,
)
from bagua_algos.engine.script.copies import NoSync
from bagua_algos.fused.fuse import unfuse_optimizer
from bagua_algos.settings import check_flag

if TYPE_CHECKING:
    from bagua_algos.fsdp2.engine import ShardedEngine

Model = TypeVar("Model", bound=nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)

NO_SYNC = "no_sync"
COMPILED_OF = "_orig_mod"
"""The attribute of a compiled model that is the plain one."""
RELEASE_FIRST = "release() that one first, or distribute the whole once"

_ENGINES: "WeakKeyDictionary[nn.Module, ref[Engine | ShardedEngine]]" = WeakKeyDictionary()
"""Of each distributed model. The model's own attributes and hooks keep its engine alive."""


def distribute(
    model: Model,
    optimizer: Optimizer,
    algorithm: Algorithm,
    communicator: Communicator | None = None,
    *,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    find_unused_parameters: bool = False,
    grad_scaler: GradScaler | None = None,
    streams: NumStreams | None = None,
    pattern: Pattern | None = None,
    pieces: bool | None = None,
    shared_memory: bool | None = None,
    autotune: bool = False,
) -> tuple[Model, Optimizer]:
    """Train `model` with the other workers by `algorithm`; returns the same model and the same
    optimizer, which steps once for many parameters where that changes no bit. Every worker draws
    examples of its own, and its loss counts the same (docs/library.md).

    Args:
        model: takes the weights and buffers of worker 0.
        optimizer: over the model's parameters.
        algorithm: the relaxation.
        communicator: the workers; None: torch's default process group. FSDP2 needs one.
        bucket_bytes: a bucket of gradients is sent once it holds this many bytes.
        timeout_s: the longest wait for one bucket, in seconds.
        find_unused_parameters: True: a parameter that no worker used keeps the gradient None;
            False: its gradient counts as zero.
        grad_scaler: the one that scales the loss, if any.
        streams: connections of gloo's workers, 1 to 16 or "auto" (docs/streams.md).
        pattern: of all-reduces: "ring", "halving_doubling", "direct" or "auto" (docs/streams.md).
        pieces: whether several streams take pieces of large messages (docs/streams.md).
        shared_memory: whether workers on one host's CPU all-reduce through it; None: if they can.
        autotune: whether the first 200 steps find the fastest settings (docs/tuning.md).

    Raises:
        ValueError: the model, optimizer or options are refused; docs/library.md lists the reasons.
    """
    check_algorithm(algorithm)
    check_communicator(communicator)
    check_limits(timeout_s, bucket_bytes)
    check_scaler(grad_scaler)
    check_flag("find_unused_parameters", find_unused_parameters)
    check_flag("autotune", autotune)
    check_flag("shared_memory", shared_memory)
    _check_is_not_distributed(model)
    _check_may_share(model, pattern, shared_memory)
    workers = communicator or _of_default_group(model, may_share=streams is pattern is None)
    make = _sharded_engine if _is_sharded(model) else _plain_engine
    engine = make(
        *(model, optimizer, algorithm, workers),
        lambda: _connected(model, workers, streams, pieces, pattern, shared_memory),
        *(float(timeout_s), bucket_bytes, find_unused_parameters, grad_scaler, autotune),
    )
    return _register(engine, model), optimizer


def _sharded_engine(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: Algorithm,
    workers: Communicator,
    connect: Callable[[], Communicator],
    timeout_s: float,
    bucket_bytes: int,
    find_unused_parameters: bool,
    grad_scaler: GradScaler | None,
    autotune: bool,
) -> "ShardedEngine":
    _check_sharded(bucket_bytes, find_unused_parameters, grad_scaler, autotune)
    check_sharded, make = _for_shards()
    check_sharded(model, optimizer, algorithm, workers)
    return make(model, optimizer, algorithm, connect(), timeout_s=timeout_s)


def _plain_engine(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: Algorithm,
    workers: Communicator,
    connect: Callable[[], Communicator],
    timeout_s: float,
    bucket_bytes: int,
    find_unused_parameters: bool,
    grad_scaler: GradScaler | None,
    autotune: bool,
) -> Engine:
    check_can_train(model, optimizer, algorithm, workers)  # before anything is measured
    return make_engine(
        *(model, optimizer, algorithm, connect()),
        bucket_bytes=bucket_bytes,
        autotune=autotune,
        timeout_s=timeout_s,
        find_unused_parameters=find_unused_parameters,
        grad_scaler=grad_scaler,
    )


def _connected(
    model: nn.Module,
    communicator: Communicator,
    streams: NumStreams | None,
    pieces: bool | None,
    pattern: Pattern | None,
    shared_memory: bool | None,
) -> Communicator:
    if isinstance(communicator, ProcessGroupCommunicator):
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        communicator.check_carries(tensors)
    if streams is not None or pieces is not None:
        number = communicator.streams if streams is None else streams
        communicator, _ = with_streams(communicator, number, pieces)
    if pattern is not None:
        communicator, _ = with_pattern(communicator, pattern)
    if shared_memory is not None:
        communicator = with_shared_memory(communicator, shared_memory)
    return communicator


def is_distributed(model: nn.Module) -> bool:
    """Whether `distribute` was called with this very model, or with what `torch.compile` has made
    of it or made it of, and `release` was not since.
    """
    return _distributed(model) in _ENGINES


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Within, gradients only accumulate locally: for all but the last micro-batch of a step."""
    return _engine(model).no_sync()


def empty_backward(model: nn.Module) -> None:
    """In place of forward and backward, on a worker that has run out of examples before the others:
    its gradients count as zero in their mean. `optimizer.step()` follows as on every worker.
    """
    _engine(model).empty_backward()


def consensus(model: nn.Module) -> AbstractContextManager[float]:
    """A context in which the model is the one to evaluate or save: the mean of all workers'. What
    its `state_dict()` returns stays that mean afterwards. A collective call.

    The context yields the spread, a float: the root of the workers' mean squared distance from that
    mean, over the mean's norm.
    """
    engine = _engine(model)
    engine.pause()
    return engine.consensus()


def tuning(model: nn.Module) -> Tuning | None:
    """What `autotune` has found so far: the settings, what is not tuned, and each window of steps
    with its time. None if it is off.
    """
    engine = _engine(model)
    return tuning_of(engine) if isinstance(engine, Engine) else None


def state_dict(model: nn.Module) -> dict[str, Any]:
    """What the algorithm keeps on this worker: residuals, outer momentum, the count of steps. With
    the worker's own `model.state_dict()` and `optimizer.state_dict()` a script continues bit for
    bit. A collective call; every worker saves its own, for `torch.load(weights_only=True)`.
    """
    engine = _engine(model)
    engine.pause()
    return engine.state_dict()


def load_state_dict(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Continue from what `state_dict` returned on the worker of this rank.

    Call it last: `distribute` first, which gives all workers equal weights, then
    `model.load_state_dict` and `optimizer.load_state_dict` of this worker's own. Raises
    `ValueError` for a state of another algorithm, model, rank or number of workers; where workers
    agree after every step and the state holds no tensors, of another algorithm alone.
    """
    _engine(model).load_state_dict(state)


def release(model: nn.Module) -> None:
    """End distributed training: the model and its optimizer are plain again. A collective call.

    Raises `ValueError` within `consensus`.
    """
    engine, own = _engine(model), _distributed(model)
    if engine.is_consensus:
        raise ValueError(
            "release() within consensus(), after which each worker has its own weights again: call "
            "it afterwards, and load there what the model's state_dict() has returned within"
        )
    del _ENGINES[own]
    vars(own).pop(NO_SYNC, None)
    if isinstance(engine, Engine) and engine.has_fused:
        unfuse_optimizer(engine.context.optimizer)
    try:
        engine.pause()
    finally:
        engine.close()


def _check_is_not_distributed(model: nn.Module) -> None:
    parameters = set(model.parameters())
    for other in _ENGINES:
        if other is _distributed(model):
            raise ValueError(f"this model is distributed already: {RELEASE_FIRST}")
        if not parameters.isdisjoint(other.parameters()):
            raise ValueError(
                "the model shares parameters with one that is distributed already, a part of it or "
                f"a model around it: {RELEASE_FIRST}"
            )


def _register(engine: "Engine | ShardedEngine", model: Model) -> Model:
    _ENGINES[model] = ref(engine)
    vars(model)[NO_SYNC] = NoSync(engine.no_sync)
    return model


def _check_sharded(
    bucket_bytes: int,
    find_unused_parameters: bool,
    grad_scaler: GradScaler | None,
    autotune: bool,
) -> None:
    from bagua_algos.fsdp2 import checks

    checks.check_options(
        has_bucket_bytes=bucket_bytes != DEFAULT_BUCKET_BYTES,
        finds_unused_parameters=find_unused_parameters,
        has_grad_scaler=grad_scaler is not None and grad_scaler.is_enabled(),
        autotunes=autotune,
    )


def _for_shards() -> "tuple[Callable[..., None], type[ShardedEngine]]":
    """What checks, and what makes an engine, for a sharded model."""
    from bagua_algos.fsdp2 import engine

    return engine.check_can_train, engine.ShardedEngine


def _of_default_group(model: nn.Module, *, may_share: bool) -> ProcessGroupCommunicator:
    may_share = may_share and _is_on_cpu(model)
    first = next(model.parameters(), None)
    return ProcessGroupCommunicator(
        shared_memory=None if may_share else False, device=None if first is None else first.device
    )


def _check_may_share(model: nn.Module, pattern: Pattern | None, shared_memory: bool | None) -> None:
    if not shared_memory:
        return
    if not _is_on_cpu(model):
        raise ValueError("shared_memory=True is for models on the CPU: leave it out")
    if pattern is not None:
        raise ValueError(
            f"all-reduces through shared memory have no pattern: leave out pattern={pattern!r} or "
            "shared_memory=True"
        )


def _is_on_cpu(model: nn.Module) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


def _is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was called with the model or a part of it, or it has distributed
    tensors from elsewhere.
    """
    # What is not imported nobody can have used, and it takes a second to import.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    tensor = sys.modules.get("torch.distributed.tensor")
    return any(fsdp and isinstance(m, fsdp.FSDPModule) for m in model.modules()) or any(
        tensor and isinstance(p, tensor.DTensor) for p in model.parameters()
    )


def _distributed(model: nn.Module) -> nn.Module:
    """The model that `distribute` was called with: `model`, or that one compiled or plain."""
    if model in _ENGINES:
        return model
    plain = getattr(model, COMPILED_OF, model)
    return next((m for m in list(_ENGINES) if getattr(m, COMPILED_OF, m) is plain), model)


def _engine(model: nn.Module) -> "Engine | ShardedEngine":
    find = _ENGINES.get(_distributed(model))
    engine = None if find is None else find()
    if engine is None:
        raise ValueError("this model is not distributed: call bagua_algos.distribute() first")
    return engine
