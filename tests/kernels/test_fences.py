"""CPU kernels write nothing behind the arrays that they are given: compiled code would not tell."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kernels.jit import PIECE
from tests.kernels.backends import MINMAX, NUM_ROWS, REFERENCE, SIGNS, Backend, Codec, every_codec

FENCE = 7
CPU = Backend("cpu")


@pytest.fixture(autouse=True)
def _fences(monkeypatch):
    """Every array that a kernel of a codec is given has one row more behind it."""
    for module in (
        CPU.module(Codec(name)) for name in ("fp8", "minmax_uint8", "qsgd", "sign_scale")
    ):
        for name in {"share", "share_pieces"} & vars(module).keys():
            monkeypatch.setattr(module, name, _fenced(vars(module)[name]))


def _fenced(share: Callable[..., None]) -> Callable[..., None]:
    def share_fenced(kernel: Any, arguments: tuple[Any, ...], *rest: Any) -> None:
        arrays = [i for i, x in enumerate(arguments) if isinstance(x, np.ndarray)]
        fenced = {i: np.concatenate([arguments[i], _row(arguments[i])]) for i in arrays}
        share(
            kernel,
            tuple(fenced[i][:-1] if i in fenced else x for i, x in enumerate(arguments)),
            *rest,
        )
        for i in arrays:
            assert (fenced[i][-1:] == _row(arguments[i])).all(), f"{kernel.__name__}, argument {i}"
            if arguments[i].flags.writeable:
                arguments[i][...] = fenced[i][:-1]

    return share_fenced


def _row(x: np.ndarray) -> np.ndarray:
    return np.full((1, *x.shape[1:]), FENCE, x.dtype)


@every_codec
@pytest.mark.parametrize("n", [1, 13, PIECE, 2 * PIECE + 13])
def test_nothing_behind_an_array_is_written(codec: Codec, n: int) -> None:
    chunks = torch.randn(NUM_ROWS, n, generator=torch.Generator().manual_seed(0))
    payload = CPU.compress(codec, chunks)
    CPU.decompress_mean(codec, torch.stack([payload, payload], 1), n)
    if codec == MINMAX:
        CPU.average(codec, torch.stack([payload, payload], 1), n)
        CPU.decompress(codec, payload, n, torch.bfloat16)
    if codec == SIGNS:
        ours, _ = CPU.compress_with_feedback(codec, chunks, torch.ones_like(chunks))
        expected, _ = REFERENCE.compress_with_feedback(codec, chunks, torch.ones_like(chunks))
        assert torch.equal(ours, expected), "what the kernels wrote has come through"
