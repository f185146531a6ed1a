"""What `kernels.bench` measures: every kernel on one chunk, its reference, the bytes it moves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels import fp8, minmax_uint8, qsgd, sign_scale
from kernels.fp8 import reference as fp8_reference
from kernels.minmax_uint8 import reference as minmax_uint8_reference
from kernels.qsgd import reference as qsgd_reference
from kernels.sign_scale import reference as sign_scale_reference

NUM_CODES = 4  # of which a mean is taken
GROUP_SIZE = 512
_KEY = (0, 0)


@dataclass(frozen=True, kw_only=True)
class BenchCase:
    """One kernel: `run` calls it, and `reference`, given `arguments`, does the same in plain torch.
    Both write into existing tensors. `num_bytes` counts the bytes that the kernel has to move.
    """

    name: str
    run: Callable[[], object]
    reference: Callable[..., object]
    arguments: tuple[Any, ...]
    num_bytes: int


def cases(x: Tensor) -> Iterator[BenchCase]:
    """All kernels, for a chunk `x[1, n]` of float32 or a 16-bit float."""
    yield from _minmax_uint8(x)
    yield from _sign_scale(x)
    for bits in (2, 4, 8):
        yield from _qsgd(x, bits)
    for wire in fp8.WIRE_DTYPES:
        settings = {"wire": wire}
        compress = partial(fp8.compress, x, **settings)
        yield from _codec(wire, fp8, fp8_reference, x, compress, (), settings)


def _minmax_uint8(x: Tensor) -> Iterator[BenchCase]:
    n, reference = x.shape[1], minmax_uint8_reference
    compress = partial(minmax_uint8.compress, x)
    payload, payloads = compress(), _several(compress())
    yield from _codec("minmax_uint8", minmax_uint8, reference, x, compress, (), {})
    yield BenchCase(
        name="minmax_uint8 average",
        run=lambda: minmax_uint8.average(payloads, n, out=payload),
        reference=reference.average,
        arguments=(payloads, n, payload),
        num_bytes=2 * payloads.nbytes + payload.nbytes,
    )
    yield BenchCase(
        name="minmax_uint8 compress, new output",
        run=compress,
        reference=reference.compress,
        arguments=(x, payload),
        num_bytes=2 * x.nbytes + payload.nbytes,
    )
    y = torch.empty_like(x, dtype=torch.float32)
    yield BenchCase(
        name="minmax_uint8 decompress, new output",
        run=lambda: minmax_uint8.decompress(payload, n),
        reference=reference.decompress,
        arguments=(payload, y),
        num_bytes=payload.nbytes + y.nbytes,
    )


def _sign_scale(x: Tensor) -> Iterator[BenchCase]:
    compress = partial(sign_scale.compress, x)
    yield from _codec("sign_scale", sign_scale, sign_scale_reference, x, compress, (), {})
    residual, payload = torch.zeros_like(x, dtype=torch.float32), compress()
    yield BenchCase(
        name="sign_scale compress_with_feedback",
        run=lambda: sign_scale.compress_with_feedback(x, residual, out=payload),
        reference=sign_scale_reference.compress_with_feedback,
        arguments=(x, residual, payload),
        num_bytes=x.nbytes + 4 * residual.nbytes + payload.nbytes,
    )


def _qsgd(x: Tensor, bits: int) -> Iterator[BenchCase]:
    streams = torch.zeros(1, 3, dtype=torch.int64, device=x.device)
    settings = {"bits": bits, "group_size": GROUP_SIZE}
    compress = partial(qsgd.compress, x, streams, _KEY, **settings)
    yield from _codec(f"qsgd_{bits}", qsgd, qsgd_reference, x, compress, (streams, _KEY), settings)


def _codec(
    name: str,
    codec: ModuleType,
    reference: ModuleType,
    x: Tensor,
    compress: Callable[..., Tensor],
    draws: tuple[Any, ...],
    settings: dict[str, Any],
) -> Iterator[BenchCase]:
    """The three functions that every codec has."""
    n, payload = x.shape[1], compress()
    payloads, y = _several(payload), torch.empty_like(x, dtype=torch.float32)
    options = tuple(settings.values())
    yield BenchCase(
        name=f"{name} compress",
        run=lambda: compress(out=payload),
        reference=reference.compress,
        arguments=(x, payload, *draws, *options),
        num_bytes=2 * x.nbytes + payload.nbytes,
    )
    yield BenchCase(
        name=f"{name} decompress",
        run=lambda: codec.decompress(payload, n, out=y, **settings),
        reference=reference.decompress,
        arguments=(payload, y, *options),
        num_bytes=payload.nbytes + y.nbytes,
    )
    yield BenchCase(
        name=f"{name} decompress_mean",
        run=lambda: codec.decompress_mean(payloads, n, out=y, **settings),
        reference=reference.decompress_mean,
        arguments=(payloads, y, *options),
        num_bytes=payloads.nbytes + y.nbytes,
    )


def _several(payload: Tensor) -> Tensor:
    return payload.unsqueeze(1).repeat(1, NUM_CODES, 1)
