"""Workers must have the same model: in buckets parameters have no names, only places, and buffers
are averaged beside each other. And all begin by the same settings of the optimizer: by others they
would train apart, and nothing would tell.
"""

import hashlib
from collections.abc import Iterator, Sequence
from numbers import Number
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bagua_algos.communication.communicator import Averager, Communicator
from bagua_algos.engine.consensus import Run, outside_inference_mode
from bagua_algos.engine.parameter_groups import check_untrained

_NO_SETTINGS = ("params", "foreach", "fused", "capturable", "differentiable")
"""Of a parameter group: what is in it, and by what program it is stepped."""

_REMEDIES = {
    "model": "build the same model on every worker, with the same layers frozen, in an order that "
    "no set and no random number decides",
    "optimizer": "make it alike on every worker, with the same settings; to train by others, give "
    "them to its groups after distribute",
}

_DIGEST_BYTES = 16
_SENTENCE_BYTES = 512


def check_same_model(
    model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator, run: Run
) -> None:
    """Raise `ValueError`, on every worker, where the models of two workers differ in their
    parameters' or buffers' names, order, shapes or types, or in what they train; or their
    optimizers in their kind, in a setting, such as the learning rate, or in what each group has.

    A collective call, in jobs of `run`. Nothing is compared where one process holds all workers, in
    one model.
    """
    own, num_held = communicator.ranks[0], len(communicator.ranks)
    if num_held > 1 or communicator.world_size == 1:
        return
    device = next(p for p in model.parameters() if p.requires_grad).device
    both = _parts_of(model), list(_parts_of_optimizer(model, optimizer))
    summary = [number for parts in both for number in (*_digest(repr(parts)), len(parts))]
    first_Nt = _gather(torch.tensor(summary, device="cpu"), device, communicator, run)
    for what, parts, summary_Nt in zip(_REMEDIES, both, first_Nt.chunk(2, 1), strict=True):
        if (summary_Nt == summary_Nt[0]).all():
            continue
        most = int(summary_Nt[:, -1].max())  # so that every worker sends as much
        all_Ntb = _gather_digests(parts, most, device, communicator, run)
        other, place = _first_difference(all_Ntb, own) or (own, 0)
        more = f"which goes on after {parts[-1]}"
        raise ValueError(
            f"worker {own}'s {what} differs from worker {other}'s, "
            + (f"from {parts[place]} on" if place < len(parts) else more)
            + f": {_REMEDIES[what]}"
        )


class Meeting(NamedTuple):
    """Workers that average buffers: by `averager`, in jobs of `run`; what is to be said of those
    that cannot be averaged travels by `workers`.
    """

    averager: Averager
    workers: Communicator
    run: Run


@outside_inference_mode()
def check_still_same_model(
    model: nn.Module, meetings: Sequence[Meeting], device: torch.device
) -> None:
    """Raise `ValueError`, on every worker, where the parameters or buffers of two differ by now in
    their names, order, shapes or types, as where a script has replaced a buffer by a larger one; or
    where one worker has a buffer or frozen parameter that cannot take others' values.

    A collective call: 256 bytes travel in each of `meetings`, each of other workers, who average in
    turn; where one process holds all workers, none.
    """
    refused = ""
    try:
        check_untrained(model)
    except ValueError as error:
        refused = str(error)
    parameters = [f"the parameter {_described(name, p)}" for name, p in model.named_parameters()]
    parts = [refused, *parameters, *_buffers_of(model)]
    apart = _apart(parts, meetings, device)
    if refused:
        raise ValueError(refused)
    for other, place, first, second in apart or ():
        if place == 0:  # one of them cannot be averaged at all
            raise ValueError(f"on worker {0 if first else other} {first or second}")
        raise ValueError(
            f"worker 0 has {first} and worker {other} has {second}, so that they cannot be "
            "averaged: change shapes and types alike on all workers, or keep what changes as an "
            "attribute that is no buffer"
        )
    if apart is not None:
        raise ValueError("other workers' parameters or buffers differ in names, shapes or types")


def check_same_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    meetings: Sequence[Meeting],
    device: torch.device,
) -> None:
    """Raise `ValueError`, on every worker, where the optimizers of two differ, as in
    `check_same_model`. A collective call, as `check_still_same_model`.
    """
    apart = _apart(list(_parts_of_optimizer(model, optimizer)), meetings, device)
    for other, _, first, second in apart or ():
        raise ValueError(
            f"worker {other}'s optimizer differs from worker 0's, which has {first}, and it has "
            f"{second}: {_REMEDIES['optimizer']}"
        )
    if apart is not None:
        raise ValueError(f"other workers' optimizers differ: {_REMEDIES['optimizer']}")


class _Apart(NamedTuple):
    """A worker that differs from the first one of its meeting: the number of the first part in
    which it does, and what the two have there.
    """

    other: int
    place: int
    first: str
    second: str


def _apart(
    parts: Sequence[str], meetings: Sequence[Meeting], device: torch.device
) -> list[_Apart] | None:
    """None where all workers of all `meetings` have the same parts; else of each meeting of this
    worker where two differ, the same on all of its workers.
    """
    between = [m for m in meetings if len(m.workers.ranks) == 1 and m.workers.world_size > 1]
    if not _any_differs(_digest(repr(parts)), between, device):
        return None
    found = [_first_apart(parts, workers, device, run) for _, workers, run in between]
    return [apart for apart in found if apart is not None]


def _any_differs(digest: bytes, between: Sequence[Meeting], device: torch.device) -> bool:
    """Whether two workers have other digests. The mean of a byte's squares is the square of its
    mean where all have the same byte. If not, it is greater by 1 / (2 N) at least.
    """
    byte_d = torch.tensor([[*digest]], dtype=torch.float64, device=device)
    moments_d = torch.cat([byte_d, byte_d.square()], 1)
    num_workers = 1
    for averager, workers, run in between:
        run("comparison of models", lambda a=averager: a.all_reduce_mean_(moments_d))
        num_workers *= workers.world_size
    mean_d, squares_d = moments_d.split(len(digest), 1)
    return bool((squares_d - mean_d.square()).max() > 0.25 / num_workers)


def _first_apart(
    parts: Sequence[str], workers: Communicator, device: torch.device, run: Run
) -> _Apart | None:
    """Of one meeting; None where none of its workers differs from the first."""
    number = torch.tensor([len(parts)], device="cpu")
    most = int(_gather(number, device, workers, run).max())
    all_Ntb = _gather_digests(parts, most, device, workers, run)
    differs = _first_difference(all_Ntb, 0)
    other, place = differs or (0, 0)
    said = parts[place] if place < len(parts) else "nothing more"
    octets = said.encode()[:_SENTENCE_BYTES].ljust(_SENTENCE_BYTES, b"\0")
    all_Nb = _gather(torch.tensor([*octets], device="cpu"), device, workers, run)
    first, second = (
        bytes(all_Nb[n].tolist()).rstrip(b"\0").decode(errors="ignore") for n in (0, other)
    )
    return _Apart(other, place, first, second) if differs else None


def _first_difference(all_Ntb: Tensor, own: int) -> tuple[int, int] | None:
    """The first worker whose digests differ from those of worker `own`, and of which part."""
    differs_Nt = (all_Ntb != all_Ntb[own]).any(2)
    if not differs_Nt.any():
        return None
    other = int(differs_Nt.any(1).int().argmax())
    return other, int(differs_Nt[other].int().argmax())


def _parts_of(model: nn.Module) -> list[str]:
    """All that is distributed, in words for errors."""
    parts = []
    for name, x in model.named_parameters():
        kind = "trainable" if x.requires_grad else "frozen"
        # Only of a trainable one does the order in memory matter: that of its bucket.
        order = "" if x.is_contiguous() or not x.requires_grad else ", channels_last"
        parts.append(f"the {kind} {_described(name, x)}{order}")
    return parts + _buffers_of(model)


def _parts_of_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Its groups, and what each has, in words for errors."""
    names = {p: _plain(name) for name, p in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        settings = [
            f"{name}={shown}"
            for name, value in sorted(group.items())
            if name not in _NO_SETTINGS and (shown := _setting(value)) is not None
        ]
        yield f"group {number}: {type(optimizer).__name__} of {', '.join(settings)}"
        for p in group["params"]:
            yield f"group {number} with {names.get(p)!r}"


def _setting(value: object) -> str | None:
    """None for what is no number, flag or text, nor a tuple of them: each worker has its own."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta:
        value = value.item()
    if isinstance(value, tuple | list):
        parts = [_setting(part) for part in value]
        return None if None in parts else f"({', '.join(map(str, parts))})"
    return repr(value) if value is None or isinstance(value, Number | str) else None


def _buffers_of(model: nn.Module) -> list[str]:
    return [f"the buffer {_described(name, x)}" for name, x in model.named_buffers()]


def _described(name: str, x: Tensor) -> str:
    return f"{_plain(name)!r} of shape {tuple(x.shape)} in {str(x.dtype).removeprefix('torch.')}"


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")  # one worker may have compiled it, and another not


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _gather_digests(
    parts: Sequence[str], most: int, device: torch.device, communicator: Communicator, run: Run
) -> Tensor:
    """Of every worker's parts `[N, t, b]`: `most`, of which those that one lacks are zeros."""
    own_tb = torch.zeros(most, _DIGEST_BYTES, dtype=torch.int64, device="cpu")
    own_tb[: len(parts)] = torch.tensor([[*_digest(part)] for part in parts], device="cpu")
    return _gather(own_tb, device, communicator, run)


def _gather(x: Tensor, device: torch.device, communicator: Communicator, run: Run) -> Tensor:
    """`x` of every worker, `[N, ...]`."""
    gathered: list[Tensor] = []

    def gather() -> None:
        gathered.append(communicator.all_gather(x[None].to(device)))

    run("comparison of models", gather)
    return gathered[0][0].cpu()
