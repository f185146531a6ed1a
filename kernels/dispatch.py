"""What the codecs' public functions share: checks, outputs, and the choice of a back end."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""What the codecs encode."""

WireBytes = Callable[[int], int]
"""The size of a payload by the number of elements in its chunk."""

_OLDEST = (8, 0)  # reductions of a warp in one instruction, blocks.cuh


def load(codec: str, device: torch.device | str) -> None:
    """Load or compile the kernels of `codec` on `device` now instead of at their first use.

    Call it before forking workers: they then share the CPU kernels. Further calls do nothing.
    """
    device = torch.device(device)
    module = backend(codec, device)
    if hasattr(module, "load"):  # the others are compiled by being imported
        module.load(device)


def backend(codec: str, device: torch.device) -> ModuleType:
    """The functions of `codec` for tensors on `device`."""
    return _backend(codec, device.type)


def why_no_kernels() -> str | None:
    """What keeps the CUDA kernels from running on the current GPU."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed (the extra cuda12 or cuda13 of this package brings it)"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < _OLDEST:
        return f"the GPU is older than compute capability {_OLDEST[0]}.{_OLDEST[1]}"
    return None


def rows(x: Tensor) -> Tensor:
    """View or copy `[..., n]` as `[chunks, n]`."""
    return x.detach().reshape(x.shape[:-1].numel(), x.shape[-1])


def stacked_rows(payloads: Tensor) -> Tensor:
    """View or copy `[..., N, B]` as `[chunks, N, B]`."""
    *batch, num_codes, num_bytes = payloads.shape
    return payloads.detach().reshape(torch.Size(batch).numel(), num_codes, num_bytes)


def output(
    out: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    name: str = "out",
) -> Tensor:
    """`out`, or a new tensor where there is none.

    Raises:
        ValueError: `out`, called `name`, is another than is needed, or not contiguous.
    """
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if (out.shape, out.dtype, out.device) != (shape, dtype, device) or not out.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous {dtype} tensor of {list(shape)} on {device}, "
            f"got {out.dtype}, {list(out.shape)} on {out.device}, strides {out.stride()}"
        )
    return out


def check_chunks(codec: str, x: Tensor) -> None:
    """Raise `ValueError` unless `x` is `[..., n]` of a type that the codecs take."""
    check_dtype(codec, x.dtype)
    if x.dim() == 0:
        raise ValueError("compress() needs a tensor [..., n], got a scalar; use x.reshape(1)")


def check_dtype(codec: str, dtype: torch.dtype) -> None:
    """Raise `ValueError` for another type than float32, float16 and bfloat16."""
    if dtype not in DTYPES:
        raise ValueError(f"{codec} takes float32, float16 or bfloat16, not {dtype}; convert it")


def check_payload(
    codec: str, payload: Tensor, n: int, wire_bytes: WireBytes, *, stacked: bool
) -> None:
    """Raise `ValueError` unless `payload` is uint8 `[..., wire_bytes(n)]`; where it is `stacked`,
    `[..., N, wire_bytes(n)]` with N >= 1.
    """
    if n < 0:
        raise ValueError(f"n is the number of elements in a chunk and cannot be {n}")
    if payload.dtype != torch.uint8:
        raise ValueError(f"a {codec} payload is uint8, not {payload.dtype}")
    if payload.dim() < 1 + stacked or payload.shape[-1] != wire_bytes(n):
        raise ValueError(
            f"a chunk of {n} elements has a payload of [..., {'N, ' * stacked}{wire_bytes(n)}] "
            f"bytes, not {list(payload.shape)}; pass the n that was compressed"
        )
    if stacked and payload.shape[-2] == 0:
        raise ValueError(f"the mean of no payloads, {list(payload.shape)}, is not defined")


def encode(
    codec: str, name: str, x: Tensor, wire_bytes: WireBytes, out: Tensor | None, *options: Any
) -> Tensor:
    """Encode `x` `[..., n]` to uint8 `[..., wire_bytes(n)]`, into `out` if given.

    `options` are the back end's. Raises `ValueError` as `check_chunks` and `output`.
    """
    check_chunks(name, x)
    payload = output(out, (*x.shape[:-1], wire_bytes(x.shape[-1])), torch.uint8, x.device)
    if x.numel() == 0:
        return payload.zero_()
    backend(codec, x.device).compress(rows(x), rows(payload), *options)
    return payload


def decode(
    codec: str,
    name: str,
    payload: Tensor,
    n: int,
    wire_bytes: WireBytes,
    out: Tensor | None,
    *options: Any,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Decode `payload` `[..., wire_bytes(n)]` to `[..., n]` of `dtype`, into `out` if given.

    `options` are the back end's. Raises `ValueError` as `check_payload` and `output`.
    """
    check_payload(name, payload, n, wire_bytes, stacked=False)
    x = output(out, (*payload.shape[:-1], n), dtype, payload.device)
    if x.numel():
        backend(codec, x.device).decompress(rows(payload), rows(x), *options)
    return x


def decode_mean(
    codec: str,
    name: str,
    payloads: Tensor,
    n: int,
    wire_bytes: WireBytes,
    out: Tensor | None,
    *options: Any,
) -> Tensor:
    """Decode `payloads` `[..., N, wire_bytes(n)]` to the mean of the N, float32 `[..., n]`.

    `out`, `options` and errors are as in `decode`; N = 0 is a `ValueError` too.
    """
    check_payload(name, payloads, n, wire_bytes, stacked=True)
    x = output(out, (*payloads.shape[:-2], n), torch.float32, payloads.device)
    if x.numel():
        backend(codec, x.device).decompress_mean(stacked_rows(payloads), rows(x), *options)
    return x


@cache
def _backend(codec: str, device_type: str) -> ModuleType:
    return importlib.import_module(f"kernels.{codec}.{_form(device_type)}")


def _form(device_type: str) -> str:
    if device_type == "cpu":
        return "cpu"
    if device_type == "cuda":
        obstacle = why_no_kernels()
        if obstacle is None:
            return "cuda"
        warnings.warn(f"{obstacle}, so kernels on the GPU are plain torch", stacklevel=4)
    return "reference"
