"""What all trainers do alike: a worker's part of a checkpoint, and the end of training.

A trainer's own checkpoint is one for all workers, and holds the consensus. Beside it every worker
keeps a file of its own, without which no training could go on as it was: workers differ in weights,
in their optimizers and in what their algorithms remember.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.serialization import default_restore_location

import bagua_algos
from bagua_algos.checkpoint import NUM_WORKERS, check_whole, is_portable
from bagua_algos.engine.algorithm import Algorithm

UNLIKE_STEPS = (
    "either saving was interrupted, then take another checkpoint; or workers had unequal numbers "
    "of batches, from where none can go on"
)
"""What it means where the parts of a checkpoint are of different steps. Schedules and loops are
saved once for all workers, so those that have counted otherwise cannot be given theirs back.
"""


def worker_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """This worker's trainable weights, buffers, optimizer and algorithm, as they are in memory: to
    be saved before they change. A collective call.
    """
    algorithm = bagua_algos.state_dict(model)  # first: it ends what still changes weights
    return {"weights": _own(model), "optimizer": optimizer.state_dict(), "algorithm": algorithm}


def load_worker_state(model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Continue from another run's `worker_state`.

    Raises `ValueError` where that was of another algorithm, model, worker or number of workers.
    """
    _check_fits(model, state["weights"])
    _copy_(model, state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    bagua_algos.load_state_dict(model, state["algorithm"])


def save_own_file(folder: str | os.PathLike[str], rank: int, state: Mapping[str, Any]) -> None:
    """Put a worker's part into a checkpoint that is a folder, which may have to be made."""
    os.makedirs(folder, exist_ok=True)
    torch.save(state, _own_file(folder, rank))


def load_own_file(
    folder: str | os.PathLike[str],
    rank: int,
    device: torch.device,
    algorithm: Algorithm,
    *,
    otherwise: str,
) -> dict[str, Any]:
    """What `save_own_file` has put there, on `device`; or `part_of` has in its place.

    Raises `ValueError` where there is none, or another file; `otherwise` says what to do then.
    """

    def load(own: int) -> dict[str, Any] | None:
        path = _own_file(folder, own)
        if not path.exists():
            return None
        with reading(path, otherwise):
            check_whole(path)
            return torch.load(path, map_location=to_device(device), weights_only=True)

    state = part_of(rank, load, algorithm)
    if state is None:
        raise ValueError(
            f"there is no {_own_file(folder, rank)}: the checkpoint was saved without the "
            f"algorithm's state, or by fewer workers; {otherwise}"
        )
    return state


def part_of(
    rank: int, load: Callable[[int], dict[str, Any] | None], algorithm: Algorithm
) -> dict[str, Any] | None:
    """The `worker_state` that worker `rank` has saved, by `load`, which returns None where there is
    none. A worker that was not there then takes worker 0's, if any number of workers can go on.
    """
    own = load(rank)
    if own is not None:
        return own
    first = load(0)
    return first if first and _is_for_more(first["algorithm"], rank, algorithm) else None


@contextmanager
def reading(path: str | os.PathLike[str], otherwise: str) -> Iterator[None]:
    """Within it `path` is read. It may be a stranger's: what torch refuses, or is damaged, raises
    `ValueError`; `otherwise` says what to do then.
    """
    try:
        yield
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(
            f"{path} is no worker's part of a checkpoint, or is damaged: take another checkpoint; "
            f"{otherwise}"
        ) from error


def to_device(device: torch.device) -> Callable[[Any, str], Any]:
    """A `map_location`: what was on any GPU goes to `device`, and what was on the CPU stays."""

    def place(storage: Any, tag: str) -> Any:
        return storage if tag == "cpu" else default_restore_location(storage, str(device))

    return place


def settle(model: nn.Module) -> None:
    """End distributed training: every worker keeps the consensus. A collective call."""
    with bagua_algos.consensus(model):
        means = {name: value.clone() for name, value in _own(model).items()}
    bagua_algos.release(model)
    _copy_(model, means)


def check_optimizer(optimizer: Optimizer, algorithm: Algorithm) -> None:
    """Raise `ValueError` where the optimizer itself swaps weights for evaluations, as schedule-free
    ones do, which the averages of differing workers would undo.
    """
    if not algorithm.workers_agree and callable(getattr(optimizer, "eval", None)):
        raise ValueError(
            f"{type(optimizer).__name__} evaluates other weights than it trains, and so does "
            f"{type(algorithm).__name__}: choose another optimizer, or an algorithm whose workers "
            "agree after every step"
        )


def _is_for_more(state: Mapping[str, Any], rank: int, algorithm: Algorithm) -> bool:
    """Whether worker `rank` was not among those of this state, and can go on with it."""
    num_workers = state["of"].get(NUM_WORKERS)
    is_new = num_workers is not None and num_workers <= rank
    return is_new and is_portable(state["state"], workers_agree=algorithm.workers_agree)


def _own(model: nn.Module) -> dict[str, Tensor]:
    model = getattr(model, "_orig_mod", model)  # names are the same, compiled or not
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return weights | dict(model.named_buffers())


def _copy_(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, own in _own(model).items():
            own.copy_(values[name])


def _check_fits(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Raise `ValueError` unless `values` are all that this worker trains and buffers."""
    own = {name: list(x.shape) for name, x in _own(model).items()}
    other = {name: list(x.shape) for name, x in values.items()}
    differing = [name for name in own | other if own.get(name) != other.get(name)]
    if differing:
        name = differing[0]
        raise ValueError(
            f"the checkpoint has {other.get(name, 'nothing')} for {name!r}, of which the model "
            f"trains {own.get(name, 'nothing')}: resume with the same model and the same frozen "
            "parts, or begin anew with the checkpoint's weights"
        )


def _own_file(folder: str | os.PathLike[str], rank: int) -> Path:
    return Path(folder) / f"worker_{rank}.pt"
