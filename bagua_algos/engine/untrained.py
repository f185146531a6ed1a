"""Buffers and frozen parameters: the state of a model beside its trainable parameters; and which
tensors are alike on all workers.

Shape suffixes: N workers, w of them held by this process, n elements, b bytes, t tensors.
"""

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from bagua_algos.communication.communicator import Averager, Communicator
from bagua_algos.engine.consensus import Run

_DIGEST_BYTES = 16
_CHUNK_WORDS = 1 << 17
_MULTIPLIERS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Those of splitmix64 (Steele, Lea and Flood 2014), as signed integers."""


def broadcast_untrained_(model: nn.Module, communicator: Communicator) -> None:
    """Replace every buffer and frozen parameter by worker 0's. A collective call."""
    frozen = [p.detach() for p in model.parameters() if not p.requires_grad]
    broadcast_where_different_([*frozen, *model.buffers()], communicator)


def broadcast_where_different_(tensors: list[Tensor], communicator: Communicator) -> None:
    """As `broadcast_tensors_`, of those tensors alone that are not alike on all workers."""
    broadcast_tensors_(that_differ(tensors, communicator), communicator)


def broadcast_weights_(weights: Sequence[Tensor], communicator: Communicator, run: Run) -> None:
    """Replace each of `weights` that is not alike on all workers by worker 0's. A collective call,
    in jobs of `run`.
    """
    apart: list[Tensor] = []
    run("comparison of weights", lambda: apart.extend(that_differ(weights, communicator)))
    for x in apart:
        run("broadcast of weights", lambda x=x: communicator.broadcast_(x))


def that_differ(tensors: Sequence[Tensor], communicator: Communicator) -> list[Tensor]:
    """Those of `tensors` whose bits are not the same on all workers, by a digest of 16 bytes each:
    workers that have all seeded or loaded a model alike need not send it. A collective call.

    All of them where one process holds several workers, or a tensor is on a GPU: there a copy costs
    less than a digest.
    """
    num_held, num_workers = len(communicator.ranks), communicator.world_size
    if not tensors or num_held > 1 or num_workers == 1 or any(x.is_cuda for x in tensors):
        return list(tensors)
    own_tb = torch.stack([digest(x) for x in tensors])
    all_Ntb = communicator.all_gather(own_tb[None])[0]
    differs_t = (all_Ntb != all_Ntb[:1]).any(2).any(0)
    return [x for x, differs in zip(tensors, differs_t.tolist(), strict=True) if differs]


def digest(x: Tensor) -> Tensor:
    """16 bytes of its bits, uint8, on the CPU."""
    real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    octets = _dense(real.detach().resolve_neg(), 1).view(torch.uint8).cpu().numpy()
    digest = hashlib.blake2b(octets.data, digest_size=_DIGEST_BYTES).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def average_untrained_(
    model: nn.Module,
    averager: Averager,
    run: Run,
    trained: Iterable[nn.Parameter],
    *,
    kept_equal_by: str | None = None,
) -> None:
    """Make buffers alike, and the parameters that are not `trained`: those are frozen, and for a
    while others may need no gradient either. Where an algorithm keeps weights equal, its name says
    so, and a warning tells of frozen ones that were not alike. A collective call, in a job of
    `run`.
    """
    own, apart = set(trained), []
    frozen = {name: p.detach() for name, p in model.named_parameters() if p not in own}
    tensors = [*model.buffers(), *frozen.values()]
    run("averaging of buffers", lambda: apart.extend(make_alike_(tensors, averager)))
    if kept_equal_by is not None:
        warn_of_frozen(kept_equal_by, frozen, apart)


def warn_of_frozen(algorithm: str, frozen: Mapping[str, Tensor], apart: Iterable[Tensor]) -> None:
    """One sentence where some of these parameters by name, frozen or of a layer that came later,
    are among the tensors that were `apart`, and should not be.
    """
    places = {id(x) for x in apart}
    names = [name for name, x in frozen.items() if id(x) in places]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warnings.warn(
            f"the untrained parameter {names[0]!r}{more} differed between workers, and {algorithm} "
            "keeps weights equal: whatever changes it has to do the same on every worker; it is "
            "the mean of all workers' from here on, or worker 0's where it has whole numbers",
            stacklevel=2,
        )


def make_alike_(tensors: Sequence[Tensor], averager: Averager) -> list[Tensor]:
    """Replace those of `tensors` that are not alike on all workers, and return them:
    floating-point and complex ones (BatchNorm's moving averages, a teacher that follows its
    student) by their mean over all workers, any other (counts, masks, quantized weights) by worker
    0's. What is alike keeps its bits. A collective call; 12 bytes a tensor travel.
    """
    tensors = [x for x in tensors if x.numel()]
    if not tensors:
        return []
    own_wt = torch.stack([_checksums(_real(x), len(averager.ranks)) for x in tensors], 1)
    first_wt = own_wt.clone()
    averager.broadcast_(first_wt)
    differs_wt = (own_wt != first_wt).float()
    averager.all_reduce_mean_(differs_wt)
    apart = [x for x, share in zip(tensors, differs_wt[0].tolist(), strict=True) if share]
    _average_([_real(x) for x in apart if _is_number(x)], averager)
    broadcast_tensors_([x for x in apart if not _is_number(x)], averager)
    return apart


def _is_number(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _real(x: Tensor) -> Tensor:
    """The same memory, of real numbers and as it is: nothing in it is to be conjugated or negated
    when it is read.
    """
    x = x.conj() if x.is_conj() else x
    x = torch._neg_view(x) if x.is_neg() else x  # pyright: ignore[reportPrivateImportUsage]
    return torch.view_as_real(x) if x.is_complex() else x


def _checksums(x: Tensor, num_rows: int) -> Tensor:
    """Of each row's bits and their places, int64 `[w]`: a word of 64 bits is multiplied by a number
    of its place, which is as good as random. Before, its upper half is folded into the lower one: a
    product modulo 2^64 keeps little of a difference in the upper bits alone.
    """
    bytes_wb = _dense(x.detach(), num_rows).view(torch.uint8)
    num_missing = -bytes_wb.shape[1] % 8
    if num_missing:
        bytes_wb = nn.functional.pad(bytes_wb, (0, num_missing))
    elif bytes_wb.storage_offset() % 8:
        bytes_wb = bytes_wb.clone()
    words_wn = bytes_wb.view(torch.int64)
    factors_n = torch.arange(1, 1 + min(words_wn.shape[1], _CHUNK_WORDS), device=x.device)
    for multiplier in _MULTIPLIERS:
        factors_n = factors_n * multiplier
        factors_n = factors_n ^ (factors_n >> 31)
    total_w = torch.zeros(num_rows, dtype=torch.int64, device=x.device)
    for part_wn in words_wn.split(_CHUNK_WORDS, 1):
        folded_wn = (part_wn ^ (part_wn >> 32)) * factors_n[: part_wn.shape[1]]
        total_w = total_w * _MULTIPLIERS[0] + folded_wn.sum(1)
    return total_w


def _average_(tensors: list[Tensor], averager: Averager) -> None:
    if not tensors:
        return
    num_held = len(averager.ranks)
    flat_wn = torch.cat([_at_least_float32(x).reshape(num_held, -1) for x in tensors], dim=1)
    averager.all_reduce_mean_(flat_wn)
    sizes = [x.numel() // num_held for x in tensors]
    for x, mean_wn in zip(tensors, flat_wn.split(sizes, dim=1), strict=True):
        _write_(x, mean_wn.reshape(x.shape))


def broadcast_tensors_(tensors: list[Tensor], averager: Averager) -> None:
    """Replace each tensor's rows by worker 0's, in one message of bytes for tensors of any type. A
    collective call.
    """
    if not tensors:
        return
    num_held = len(averager.ranks)
    rows = [_dense(x.resolve_conj().resolve_neg(), num_held) for x in tensors]
    bytes_wb = [x.view(torch.uint8) for x in rows]
    message_wb = torch.cat(bytes_wb, dim=1)
    averager.broadcast_(message_wb)
    sizes = [x.shape[1] for x in bytes_wb]
    for x, row, old_wb, new_wb in zip(
        tensors, rows, bytes_wb, message_wb.split(sizes, dim=1), strict=True
    ):
        _write_(old_wb, new_wb)
        if row.data_ptr() != x.data_ptr():  # else it is a view of x, which has what was written
            _write_(x, row.reshape(x.shape))


def _write_(x: Tensor, values: Tensor) -> None:
    """Where a script has made `x` in `torch.inference_mode()`, only there may it be written to."""
    with torch.inference_mode(x.is_inference()):
        x.copy_(values)


def _dense(x: Tensor, num_rows: int) -> Tensor:
    """`x` in so many rows, without gaps; a view where that can be. A dimension of one element may
    have any stride, with which torch shows no bytes.
    """
    rows = x.reshape(num_rows, x.numel() // num_rows).contiguous()
    return rows.as_strided(rows.shape, (rows.shape[1], 1))


def _at_least_float32(x: Tensor) -> Tensor:
    narrow = x.element_size() < torch.float32.itemsize  # torch promotes no type of 8 bits
    return x.to(torch.float32 if narrow else x.dtype)
