"""QSGD: 2, 4 or 8 bits an element, rounded at random so that the code is right in the mean."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.compressors.compressor import Compressor, Draw, encodable, is_plain
from bagua_algos.settings import check_whole
from kernels import qsgd
from kernels.upload import upload


@dataclass(frozen=True, kw_only=True)
class QSGD(Compressor):
    """Levels k / s, k = -s ... s, of the group's greatest magnitude, with s = 2^(bits - 1) - 1
    (arXiv 1610.02132).

    Groups of `group_size` consecutive elements of a chunk have a norm each, as in the paper's
    experiments: fewer bits need smaller groups, since a level is a fraction 1 / s of the norm. A
    chunk with NaN or infinity decodes to NaN.

    Args:
        bits: of each element: 2, 4 or 8.
        group_size: elements that share a norm.
        seed: of the rounding.

    Raises:
        ValueError: other bits, an empty group, or a seed that does not fit in 32 bits.
    """

    bits: int = 4
    group_size: int = 512
    seed: int = 0
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8):
            raise ValueError(f"bits must be 2, 4 or 8, got {self.bits}")
        check_whole("group_size", self.group_size, least=1)
        check_whole("seed", self.seed, least=0)
        if self.seed >= 2**32:
            raise ValueError(f"seed must be in [0, 2^32), got {self.seed}")

    def load(self, device: torch.device | str) -> None:
        """Load or compile the kernels for `device`."""
        qsgd.load(device)

    def wire_bytes(self, num_elements: int) -> int:
        """4 bytes a group and `bits` bits an element, padded to a multiple of 4
        bytes.
        """
        return qsgd.wire_bytes(num_elements, self.bits, self.group_size)

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[w, ..., n]` -> uint8 `[w, ..., wire_bytes(n)]`, rounded by the numbers of `draw`.

        Raises `ValueError` without a `draw` that names the w workers.
        """
        if draw is None or len(draw.ranks) != x.shape[0]:
            raise ValueError(
                f"QSGD rounds at random: compress() of {list(x.shape)} needs a draw that names "
                f"the {x.shape[0]} workers in its first dimension, got {draw}"
            )
        streams = torch.tensor(
            [(draw.step, draw.bucket, rank) for rank in draw.ranks], device="cpu"
        )
        key = (self.seed, draw.stage)
        return qsgd.compress(
            encodable(x), upload(streams, x.device), key, bits=self.bits, group_size=self.group_size
        )

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., wire_bytes(n)]` -> float32 `[..., n]`."""
        return qsgd.decompress(payload, num_elements, bits=self.bits, group_size=self.group_size)

    def decompress_into(self, payload: Tensor, out: Tensor) -> None:
        """Decode the payload into `out[..., n]`."""
        if not is_plain(out):
            return super().decompress_into(payload, out)
        qsgd.decompress(payload, out.shape[-1], bits=self.bits, group_size=self.group_size, out=out)

    def decompress_mean(self, payloads: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., N, wire_bytes(n)]` -> float32 `[..., n]`: the mean of N chunks."""
        return qsgd.decompress_mean(
            payloads, num_elements, bits=self.bits, group_size=self.group_size
        )
