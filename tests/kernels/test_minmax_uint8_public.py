"""The public functions of MinMaxUInt8: shapes, dtypes, views, `out`, errors, loading."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import minmax_uint8
from kernels.minmax_uint8 import compress, decompress, wire_bytes

HALF_DTYPES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(("n", "num_bytes"), [(0, 8), (1, 16), (8, 16), (9, 24), (1024, 1032)])
def test_wire_bytes(n: int, num_bytes: int) -> None:
    assert wire_bytes(n) == num_bytes
    assert compress(torch.zeros(2, n)).shape == (2, num_bytes)


def test_empty_chunk_is_a_header_of_zeros() -> None:
    assert compress(torch.zeros(2, 0)).tolist() == [[0] * 8] * 2


@pytest.mark.parametrize("batch", [(), (1,), (4, 3), (2, 0), (2, 1, 3)])
@pytest.mark.parametrize("n", [0, 1, 13])
def test_each_slice_is_its_own_chunk(batch: tuple[int, ...], n: int) -> None:
    x = torch.randn(*batch, n, generator=torch.Generator().manual_seed(0))
    payload = compress(x)
    decoded = decompress(payload, n)
    assert payload.shape == (*batch, wire_bytes(n))
    assert decoded.shape == x.shape
    for index in np.ndindex(*batch):
        assert torch.equal(payload[index], compress(x[index]))
        assert torch.equal(decoded[index], decompress(payload[index], n))


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: x.transpose(0, 2), id="transposed"),
        pytest.param(lambda x: x[:, 1:, 1:-1], id="sliced"),
        pytest.param(lambda x: x[..., ::3], id="strided"),
        pytest.param(lambda x: x[:1].expand(4, -1, -1), id="expanded"),
    ],
)
def test_views_that_are_not_contiguous(view: Callable[[Tensor], Tensor]) -> None:
    x = view(torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(0)))
    assert not x.is_contiguous()
    payload = compress(x)
    assert torch.equal(payload, compress(x.contiguous()))
    swapped = payload.transpose(0, 1)
    expected = decompress(payload, x.shape[-1]).transpose(0, 1)
    assert torch.equal(decompress(swapped, x.shape[-1]), expected)


def test_payload_may_start_at_any_address() -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    payload = compress(x)
    buffer = torch.empty(payload.numel() + 1, dtype=torch.uint8)
    shifted = buffer[1:].view_as(payload).copy_(payload)
    assert torch.equal(decompress(shifted, 8), decompress(payload, 8))
    assert torch.equal(compress(x, out=shifted), payload)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_half_precision(dtype: torch.dtype) -> None:
    x = torch.randn(2, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    payload = compress(x)
    assert torch.equal(payload, compress(x.float()))
    decoded = decompress(payload, 100, dtype)
    assert decoded.dtype == dtype
    mn, mx = x.float().amin(1, keepdim=True), x.float().amax(1, keepdim=True)
    assert torch.equal(decoded, decompress(payload, 100).clamp(mn, mx).to(dtype))


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_nan_survives_half_precision(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, torch.inf, 2.0], dtype=dtype)
    assert torch.isnan(decompress(compress(x), 3, dtype)).all()


def test_input_that_requires_grad() -> None:
    x = torch.ones(3, requires_grad=True)
    decoded = decompress(compress(x), 3)
    assert not decoded.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_DTYPES])
@pytest.mark.parametrize("n", [0, 5])
def test_writes_into_out(dtype: torch.dtype, n: int) -> None:
    x = torch.randn(2, n, generator=torch.Generator().manual_seed(0)).to(dtype)
    payload = torch.full((2, wire_bytes(n)), 0xFF, dtype=torch.uint8)
    assert compress(x, out=payload) is payload
    assert torch.equal(payload, compress(x))
    y = torch.full_like(x, torch.nan)
    assert decompress(payload, n, dtype, out=y) is y
    assert torch.equal(y, decompress(payload, n, dtype))


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(2, 17, dtype=torch.uint8),
        torch.empty(16, dtype=torch.uint8),
        torch.empty(2, 16),
        torch.empty(16, 2, dtype=torch.uint8).T,
    ],
)
def test_refuses_out_that_does_not_fit(out: Tensor) -> None:
    with pytest.raises(ValueError, match=r"out must be a contiguous torch.uint8 .* \[2, 16\]"):
        compress(torch.zeros(2, 8), out=out)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.uint8, torch.bool])
def test_refuses_other_dtypes(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"not {dtype}"):
        compress(torch.zeros(4, dtype=dtype))
    with pytest.raises(ValueError, match=f"not {dtype}"):
        decompress(compress(torch.zeros(4)), 4, dtype)


def test_refuses_wrong_shapes() -> None:
    payload = compress(torch.zeros(2, 8))
    with pytest.raises(ValueError, match="got a scalar"):
        compress(torch.tensor(1.0))
    with pytest.raises(ValueError, match="cannot be -1"):
        decompress(payload, -1)
    with pytest.raises(ValueError, match=r"9 elements has a payload of \[..., 24\] bytes"):
        decompress(payload, 9)
    with pytest.raises(ValueError, match=r"payload is uint8, not torch\.float32"):
        decompress(payload.float(), 8)
    with pytest.raises(ValueError, match=r"not \[\]"):
        decompress(torch.tensor(0, dtype=torch.uint8), 8)


IMPORT_LOAD_FORK = """
import json, os, sys, torch
from kernels import minmax_uint8

def load_and_fork():
    assert "numba" not in sys.modules
    minmax_uint8.load("cpu")
    minmax_uint8.load(torch.device("cpu"))
    assert "numba" in sys.modules
    child = os.fork()
    x = torch.arange(256.0)
    assert torch.equal(minmax_uint8.decompress(minmax_uint8.compress(x), 256), x)
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.exit()

codes = []
for environment in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.environ |= environment
        load_and_fork()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(codes != [0, 0])
"""


def test_loads_at_request_and_before_a_fork(tmp_path: Path) -> None:
    """Where the cache is fresh, and where none can be written; torch is imported once for both."""
    fresh, unwritable = tmp_path / "fresh", tmp_path / "unwritable"
    unwritable.write_text("a file, so that no folder can be made here")
    own_locator = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    environments = [
        {"NUMBA_CACHE_DIR": str(fresh)},
        {"NUMBA_CACHE_DIR": str(unwritable), **own_locator},
    ]
    words = [sys.executable, "-c", IMPORT_LOAD_FORK, json.dumps(environments)]
    subprocess.run(words, check=True)
    assert any(fresh.rglob("cpu*.nbi"))
    assert {*tmp_path.iterdir()} == {fresh, unwritable} and unwritable.is_file()


def test_load_refuses_an_unknown_device() -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        minmax_uint8.load("nowhere")
