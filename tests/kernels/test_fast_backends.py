"""Every fast form of every codec against its reference, bit for bit."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bagua_algos.compressors.compressor import ErrorFeedback
from tests.kernels.backends import (
    MINMAX,
    NUM_ROWS,
    REFERENCE,
    SIGNS,
    Backend,
    Codec,
    every_backend,
    every_codec,
    fast_backends,
)

SIZES = [1, 7, 8, 9, 47, 1023, 1024, 1025, 8191, 8192, 8193, 300_001]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
reproducible = settings(derandomize=True, deadline=None, max_examples=100)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3 + 0.5


def any_floats(dtype: type = np.float32) -> st.SearchStrategy[Tensor]:
    """[NUM_ROWS, n] of arbitrary bits: NaN of both signs, infinities, denormals; or of numbers."""
    shapes = st.tuples(st.just(NUM_ROWS), st.integers(1, 40))
    bits = {np.float32: np.uint32, np.float16: np.uint16}[dtype]
    arbitrary = hnp.arrays(bits, shapes).map(lambda x: x.view(dtype))
    width = 8 * np.dtype(dtype).itemsize
    floats = hnp.arrays(dtype, shapes, elements=st.floats(width=width, allow_nan=False))
    return st.one_of(arbitrary, floats).map(torch.from_numpy)


def assert_equal(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


def assert_same_code(codec: Codec, ours: Tensor, expected: Tensor) -> None:
    """Equal bytes; but the order of SignScale's sum may decide a tie of its scale."""
    if codec == SIGNS:
        scales = [x[:, :4].contiguous().view(torch.float32) for x in (ours, expected)]
        torch.testing.assert_close(*scales, rtol=2.0**-23, atol=2.0**-149, equal_nan=True)
        ours, expected = ours[:, 4:], expected[:, 4:]
    assert torch.equal(ours, expected)


@every_codec
@fast_backends
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_codes_at_every_size(codec: Codec, backend: Backend, dtype: torch.dtype, n: int) -> None:
    chunks = numbers(NUM_ROWS, n).to(dtype)
    chunks[1] *= 1e-4
    chunks[2, -1] = torch.inf
    payload = backend.compress(codec, chunks)
    assert_same_code(codec, payload, REFERENCE.compress(codec, chunks))
    decoded = backend.decompress(codec, payload, n)
    assert_equal(decoded, REFERENCE.decompress(codec, payload, n))
    assert decoded[2].isnan().all()
    assert decoded[[0, 1, 3]].isfinite().all()


@every_codec
@fast_backends
@reproducible
@given(chunks=st.one_of(any_floats(), any_floats(np.float16)))
def test_codes_of_any_numbers(codec: Codec, backend: Backend, chunks: Tensor) -> None:
    payload = backend.compress(codec, chunks)
    assert_same_code(codec, payload, REFERENCE.compress(codec, chunks))


@fast_backends
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_every_number_of_16_bits_is_read(backend: Backend, dtype: torch.dtype) -> None:
    """By SignScale of one element a chunk: it keeps the element as it is."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).unsqueeze(1)
    decoded = backend.decompress(SIGNS, backend.compress(SIGNS, every), 1)
    expected = every.float().where(every.isfinite(), torch.nan)
    assert_equal(decoded, expected)


@every_codec
@fast_backends
@reproducible
@given(data=st.data())
def test_decodes_any_bytes(codec: Codec, backend: Backend, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    shape = (2, 3, codec.wire_bytes(n))
    payloads = torch.from_numpy(data.draw(hnp.arrays(np.uint8, shape)))
    one, expected = (b.decompress(codec, payloads[:, 0], n) for b in (backend, REFERENCE))
    assert_equal(one, expected)
    mean, expected = (b.decompress_mean(codec, payloads, n) for b in (backend, REFERENCE))
    assert_equal(mean, expected)


@every_codec
@fast_backends
@pytest.mark.parametrize("num_codes", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("n", [1, 100, 20_001])
def test_mean_of_codes(codec: Codec, backend: Backend, num_codes: int, n: int) -> None:
    payloads = torch.stack(
        [REFERENCE.compress(codec, numbers(NUM_ROWS, n, seed=i)) for i in range(num_codes)], 1
    )
    mean = backend.decompress_mean(codec, payloads, n)
    assert_equal(mean, REFERENCE.decompress_mean(codec, payloads, n))
    expected = sum(REFERENCE.decompress(codec, payloads[:, i], n) for i in range(num_codes))
    assert_equal(mean, expected / num_codes)


@fast_backends
@pytest.mark.parametrize("num_codes", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("n", [1, 100, 20_001])
def test_average_is_the_code_of_the_mean(backend: Backend, num_codes: int, n: int) -> None:
    chunks = torch.stack([numbers(3, n, seed=i) for i in range(num_codes)], 1)
    chunks[1, 0, -1] = torch.nan
    payloads = REFERENCE.compress(MINMAX, chunks.flatten(0, 1)).unflatten(0, (3, num_codes))
    ours = backend.average(MINMAX, payloads, n)
    assert torch.equal(ours, REFERENCE.average(MINMAX, payloads, n))
    mean = REFERENCE.decompress_mean(MINMAX, payloads, n)
    assert torch.equal(ours, REFERENCE.compress(MINMAX, mean))
    assert REFERENCE.decompress(MINMAX, ours, n)[1].isnan().all()


class ReferenceSigns:
    """A compressor without a fused error feedback."""

    def compress(self, x: Tensor, draw: object = None) -> Tensor:
        return REFERENCE.compress(SIGNS, x)

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        return REFERENCE.decompress(SIGNS, payload, num_elements)


@every_backend
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 100, 20_001])
def test_feedback_is_error_feedback_around_the_plain_code(
    backend: Backend, dtype: torch.dtype, n: int
) -> None:
    chunks, residual = numbers(3, n).to(dtype), numbers(3, n, seed=1)
    chunks[1, 0] = torch.inf
    expected_residual = residual.clone()
    expected = ErrorFeedback(ReferenceSigns()).compress(chunks, expected_residual)  # pyright: ignore
    payload, left = backend.compress_with_feedback(SIGNS, chunks, residual)
    assert torch.equal(payload, expected)
    assert torch.equal(left, expected_residual)
    assert left[1].eq(0).all()


@every_backend
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_group_may_be_larger_than_any_memory(backend: Backend, bits: int) -> None:
    chunks = numbers(NUM_ROWS, 100)
    boundless, of_chunks = Codec("qsgd", (bits, 2**60)), Codec("qsgd", (bits, 100))
    payload = backend.compress(boundless, chunks)
    assert torch.equal(payload, REFERENCE.compress(of_chunks, chunks))
    decoded = backend.decompress(boundless, payload, 100)
    assert torch.equal(decoded, REFERENCE.decompress(of_chunks, payload, 100))


@every_codec
def test_threads_change_nothing(codec: Codec) -> None:
    """Neither in one long row, which is cut into pieces, nor in many."""
    numba, num_threads = Backend("cpu"), torch.get_num_threads()

    def results(chunks: Tensor) -> list[Tensor]:
        payload, n = numba.compress(codec, chunks), chunks.shape[1]
        decoded = numba.decompress_mean(codec, payload.unsqueeze(0).contiguous(), n)
        both = [payload, decoded]
        if codec == MINMAX:
            both.append(numba.average(codec, payload.unsqueeze(0), n))
        if codec == SIGNS:
            both.extend(numba.compress_with_feedback(codec, chunks, torch.ones_like(chunks)))
        return both

    try:
        for shape in [(2, 300_001), (600, 1001)]:
            chunks = numbers(*shape)
            torch.set_num_threads(1)
            alone = results(chunks)
            torch.set_num_threads(3)
            for shared, expected in zip(results(chunks), alone, strict=True):
                assert torch.equal(shared, expected)
    finally:
        torch.set_num_threads(num_threads)
