"""BAGUA's relaxed collectives as functions over a communicator (arXiv 2107.01499, section 3).

Shape suffixes: w workers held here, N workers in all, n = N * c elements of a bucket, c of a chunk.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bagua_algos.communicator import Communicator
from bagua_algos.compression import Compressor, Draw, ErrorFeedback


@dataclass(frozen=True, eq=False)
class Residuals:
    """What the two compressions of one bucket have left out so far: `worker` `[w, N, c]`, `owner`
    `[w, c]`.
    """

    worker: Tensor
    owner: Tensor

    @classmethod
    def zeros_like(cls, x_wn: Tensor, world_size: int) -> "Residuals":
        """No error yet, for a bucket `x[w, n]`."""
        x_wNc = x_wn.view(x_wn.shape[0], world_size, -1)
        return cls(torch.zeros_like(x_wNc), torch.zeros_like(x_wNc[:, 0]))


def compressed_all_reduce_mean_(
    x_wn: Tensor,
    numel: int,
    communicator: Communicator,
    compressor: Compressor,
    residuals: Residuals | None = None,
    draw: Draw | None = None,
) -> None:
    """C_LP_S: replace `x[w, n]` by its mean over all workers, compressed twice; every worker gets
    the same bits.

    Worker j owns chunk j: it receives everyone's code of it, averages in float32 and sends
    everyone the code of the mean. With `residuals` both compressions use error feedback. A
    compressor that rounds at random needs a `draw`, and uses its stage and the next. Only the
    first `numel` columns are data.
    """
    # The padding repeats the last element: zeros would widen its chunk's range.
    x_wn[:, numel:] = x_wn[:, numel - 1 : numel]
    x_wNc = x_wn.view(x_wn.shape[0], communicator.world_size, -1)
    chunk = x_wNc.shape[-1]
    received = communicator.all_to_all(
        _compress(x_wNc, compressor, residuals.worker if residuals else None, draw)
    )
    mean_wc = compressor.decompress(received, chunk).mean(1)
    if draw is not None:
        draw = replace(draw, stage=draw.stage + 1)
    gathered = communicator.all_gather(
        _compress(mean_wc, compressor, residuals.owner if residuals else None, draw)
    )
    # Every worker gets the same bytes: decoded once for all that this process holds.
    x_wNc.copy_(compressor.decompress(gathered[:1], chunk))


def _compress(
    x: Tensor, compressor: Compressor, residual: Tensor | None, draw: Draw | None
) -> Tensor:
    if residual is None:
        return compressor.compress(x, draw)
    return ErrorFeedback(compressor).compress(x, residual, draw)
