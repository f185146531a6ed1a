"""BAGUA's relaxed collectives as functions over a communicator (arXiv 2107.01499, section 3).

                     full precision        low precision
    centralized      all_reduce_mean_      compressed_all_reduce_mean_      C_FP_S, C_LP_S
    decentralized    mix                   compressed_mix_                  D_FP_S, D_LP_S

Flat, all workers take part. With `hierarchical`, one worker of each node takes part with the node's
mean (`bagua_algos.communication.hierarchy`); residuals, replicas and mixings then belong to nodes.

Shape suffixes: w workers held here, N who take part in all, p of them held here, n elements of a
bucket, c of a chunk.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagua_algos.checkpoint import kept
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.hierarchy import Flat, levels, of_held
from bagua_algos.communication.topology import Mixing
from bagua_algos.compressors.compressor import Compressor, Draw, ErrorFeedback

CHUNK_ALIGNMENT = 16
"""Chunks (a bucket split by N workers) start on a cache line, whatever kernel reads them."""


def all_reduce_mean_(x_w: Tensor, communicator: Communicator, hierarchical: bool = False) -> None:
    """C_FP_S: replace `x[w, ...]` by its mean over all workers; every worker gets the same bits."""
    among = levels(communicator, hierarchical)

    def weighted_mean_(x_p: Tensor, parties: Communicator) -> None:
        among.weigh_(x_p)
        parties.all_reduce_mean_(x_p)

    among.run_(x_w, weighted_mean_)


@kept
@dataclass(frozen=True, eq=False)
class Residuals:
    """What the two compressions of one bucket have left out so far: `worker` `[p, N, c]`, `owner`
    `[p, c]`, in float32 at least: narrower sums would lose small gradients.
    """

    worker: Tensor
    owner: Tensor

    @classmethod
    def zeros_like(
        cls, x_wn: Tensor, communicator: Communicator, hierarchical: bool = False
    ) -> "Residuals":
        """No error yet, for a bucket `x[w, n]`."""
        among = levels(communicator, hierarchical)
        x_pNc = _chunks(among.of_parties(x_wn), among.num_parties)
        dtype = torch.promote_types(x_wn.dtype, torch.float32)
        return cls(*(torch.zeros_like(x, dtype=dtype) for x in (x_pNc, x_pNc[:, 0])))


DRAW_STAGES = 2
"""Of a draw, in each of `compressed_all_reduce_mean_`."""


def compressed_all_reduce_mean_(
    x_wn: Tensor,
    numel: int,
    communicator: Communicator,
    compressor: Compressor,
    residuals: Residuals | None = None,
    draw: Draw | None = None,
    hierarchical: bool = False,
) -> None:
    """C_LP_S: replace `x[w, n]` by its mean over all workers, compressed twice; every worker gets
    the same bits.

    Worker j owns chunk j: it receives everyone's code of it, averages in float32 and sends
    everyone the code of the mean. With `residuals` both compressions use error feedback. A
    compressor that rounds at random needs a `draw`, and uses its stage and the next. Only the
    first `numel` columns are data; the others become zeros.
    """
    if numel == 0:  # parameters without an element
        return
    # The padding repeats the last element: zeros would widen its chunk's range.
    x_wn[:, numel:] = x_wn[:, numel - 1 : numel]
    among = levels(communicator, hierarchical)

    def weighted_mean_(x_pn: Tensor, parties: Communicator) -> None:
        among.weigh_(x_pn)
        x_pNc = _chunks(x_pn, parties.world_size)
        chunk, draws = x_pNc.shape[-1], _draws(draw, parties)
        if residuals is None:
            received = parties.all_to_all(compressor.compress(x_pNc, draws[0]))
            averages = compressor.average(received, chunk, draws[1])
        else:
            feedback = ErrorFeedback(compressor)
            received = parties.all_to_all(feedback.compress(x_pNc, residuals.worker, draws[0]))
            mean_pc = compressor.decompress_mean(received, chunk)
            averages = feedback.compress(mean_pc, residuals.owner, draws[1])
        gathered = parties.all_gather(averages)
        # Every worker gets the same bytes: decoded once for all that this process holds.
        compressor.decompress_into(gathered[0], x_pNc[0])
        mean_n = x_pNc[0].flatten()[: x_pn.shape[1]]
        x_pn[1:] = mean_n
        if x_pNc.data_ptr() != x_pn.data_ptr():  # `_chunks` had to copy
            x_pn[0] = mean_n

    among.run_(x_wn, weighted_mean_)
    x_wn[:, numel:] = 0  # a chunk of NaN would stay there: backward does not write it


def _chunks(x_pn: Tensor, num_chunks: int) -> Tensor:
    """`x[p, N, c]`: a view where n divides into aligned chunks; otherwise the last element is
    repeated.
    """
    padding = -x_pn.shape[1] % (num_chunks * CHUNK_ALIGNMENT)
    if padding:
        x_pn = torch.cat([x_pn, x_pn[:, -1:].expand(-1, padding)], 1)
    return x_pn.view(x_pn.shape[0], num_chunks, x_pn.shape[1] // num_chunks)


def _draws(draw: Draw | None, parties: Communicator) -> tuple[Draw | None, Draw | None]:
    """The draws of two stages for the parties held here; a party draws by its worker's number."""
    if draw is None:
        return None, None
    first = replace(draw, ranks=tuple(parties.members[rank] for rank in parties.ranks))
    return first, replace(first, stage=draw.stage + 1)


def mix(
    x_wn: Tensor, mixing: Mixing, communicator: Communicator, hierarchical: bool = False
) -> Tensor:
    """D_FP_S: A x `[w, n]`, a new tensor; an all-reduce where it is the mean of all, which sends
    least.

    Between nodes of unequal size a larger one goes only a part of the way (`Hierarchy.pace`).
    """
    among = levels(communicator, hierarchical)
    if mixing.averages_all:
        mean_wn = x_wn.clone()
        all_reduce_mean_(mean_wn, communicator, hierarchical)
        return mean_wn
    if isinstance(among, Flat):
        return _mix(x_wn, mixing, communicator)
    mixed_wn = x_wn.clone()

    def approach_(x_pn: Tensor, parties: Communicator) -> None:
        x_pn.copy_(x_pn + among.pace(x_pn) * (_mix(x_pn, mixing, parties) - x_pn))

    among.run_(mixed_wn, approach_)
    return mixed_wn


def _mix(x_pn: Tensor, mixing: Mixing, communicator: Communicator) -> Tensor:
    mixed_pn = of_held(mixing.self_weights, communicator, x_pn) * x_pn
    for exchange in mixing.exchanges:
        rows = communicator.exchange_rows(x_pn, exchange.peers)
        _add_weighted_(mixed_pn, rows, exchange.weights, communicator)
    return mixed_pn


def _add_weighted_(
    total_pn: Tensor, rows: Iterable[Tensor], weights: Sequence[float], communicator: Communicator
) -> None:
    """Add to each party's total its row `[n]`, times the party's weight, by one pass each."""
    for total_n, row_n, rank in zip(total_pn, rows, communicator.ranks, strict=True):
        total_n.add_(row_n, alpha=weights[rank])


@kept
@dataclass(frozen=True, eq=False, kw_only=True)
class Replicas:
    """One bucket's weights as everyone knows them, `[p, numel]` in float32 at least: a worker's
    `own`, and the weights of its neighbours in the exchanges of a static mixing.
    """

    own: Tensor
    neighbours: list[Tensor]

    @classmethod
    def of(
        cls, x_wn: Tensor, mixing: Mixing, communicator: Communicator, hierarchical: bool = False
    ) -> "Replicas":
        """Copies of `x[w, numel]`, on which all workers agree."""
        x_pn = levels(communicator, hierarchical).of_parties(x_wn)
        dtype = torch.promote_types(x_pn.dtype, torch.float32)
        own, *neighbours = (x_pn.to(dtype, copy=True) for _ in range(1 + len(mixing.exchanges)))
        return cls(own=own, neighbours=neighbours)


def compressed_mix_(
    x_wn: Tensor,
    replicas: Replicas,
    mixing: Mixing,
    communicator: Communicator,
    compressor: Compressor,
    draw: Draw | None = None,
    hierarchical: bool = False,
) -> None:
    """D_LP_S: replace `x[w, n]` by A times what neighbours know of it and what is new, by codes.

        Q((x - w) + sum_j A_ij (w_j - w))        w: the replicas; x <- w, once it is updated

    `mixing` is the same at every step. A worker alone keeps `x` as it is. Between nodes of
    unequal size a larger one goes only a part of the way (`Hierarchy.pace`).
    """
    among, own = levels(communicator, hierarchical), replicas.own
    if among.num_parties == communicator.world_size == 1:
        return

    def exchange_codes_(x_pn: Tensor, parties: Communicator) -> None:
        averaged = of_held(mixing.self_weights, parties, own) * own
        for exchange, neighbour in zip(mixing.exchanges, replicas.neighbours, strict=True):
            _add_weighted_(averaged, neighbour, exchange.weights, parties)
        change = (x_pn - own) + among.pace(own) * (averaged - own)
        payload = compressor.compress(change, _draws(draw, parties)[0])
        own.add_(compressor.decompress(payload, x_pn.shape[1]))
        for exchange, neighbour in zip(mixing.exchanges, replicas.neighbours, strict=True):
            arrived = parties.exchange(payload, exchange.peers)
            neighbour.add_(compressor.decompress(arrived, x_pn.shape[1]))
        x_pn.copy_(own)

    among.run_(x_wn, exchange_codes_)
