"""Workers must have built the same model: in buckets parameters have no names, only places."""

import hashlib

import torch
from torch import Tensor, nn

from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.consensus import Run

_DIGEST_BYTES = 16


def check_same_model(model: nn.Module, communicator: Communicator, run: Run) -> None:
    """Raise `ValueError`, on every worker, where the models of two workers differ in their
    parameters' or buffers' names, order, shapes or types, or in what they train.

    A collective call, in jobs of `run`. Nothing is compared where one process holds all workers, in
    one model.
    """
    own, num_held = communicator.ranks[0], len(communicator.ranks)
    if num_held > 1 or communicator.world_size == 1:
        return
    device = next(p for p in model.parameters() if p.requires_grad).device
    parts = _parts_of(model)
    summary = [*_digest(repr(parts)), len(parts)]
    first_Nt = _gather(torch.tensor(summary, device="cpu"), device, communicator, run)
    if (first_Nt == first_Nt[0]).all():
        return
    most = int(first_Nt[:, -1].max())  # so that every worker sends as much
    own_tb = torch.zeros(most, _DIGEST_BYTES, dtype=torch.int64, device="cpu")
    own_tb[: len(parts)] = torch.tensor([[*_digest(part)] for part in parts], device="cpu")
    differs_Nt = (_gather(own_tb, device, communicator, run) != own_tb).any(2)
    other = differs_Nt.any(1).tolist().index(True)
    place = differs_Nt[other].tolist().index(True)
    more = f", which goes on after {parts[-1]}"
    raise ValueError(
        f"worker {own}'s model differs from worker {other}'s"
        + (f", from {parts[place]} on" if place < len(parts) else more)
        + ": build the same model on every worker, with the same layers frozen, in an order that "
        "no set and no random number decides"
    )


def _parts_of(model: nn.Module) -> list[str]:
    """All that is distributed, in words for errors."""
    parts = []
    for name, x in model.named_parameters():
        kind = "trainable" if x.requires_grad else "frozen"
        # Only of a trainable one does the order in memory matter: that of its bucket.
        order = "" if x.is_contiguous() or not x.requires_grad else ", channels_last"
        parts.append(f"the {kind} {_described(name, x)}{order}")
    return parts + [f"the buffer {_described(name, x)}" for name, x in model.named_buffers()]


def _described(name: str, x: Tensor) -> str:
    plain = name.replace("_orig_mod.", "")  # one worker may have compiled it, and another not
    return f"{plain!r} of shape {tuple(x.shape)} in {str(x.dtype).removeprefix('torch.')}"


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _gather(x: Tensor, device: torch.device, communicator: Communicator, run: Run) -> Tensor:
    """`x` of every worker, `[N, ...]`."""
    gathered: list[Tensor] = []

    def gather() -> None:
        gathered.append(communicator.all_gather(x[None].to(device)))

    run("comparison of models", gather)
    return gathered[0][0].cpu()
