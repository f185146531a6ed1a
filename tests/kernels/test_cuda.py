"""The CUDA kernels against the torch reference, bit for bit: on a GPU, and emulated on the CPU.

The emulation (cuda_emulation.h) runs the same sources through the same launch code, where there is
a C++ compiler. It stands in for absent hardware.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from itertools import product

import pytest
import torch
from torch import Tensor

from kernels import cuda_module
from kernels.fp8 import cuda as fp8_cuda
from kernels.fp8 import reference as fp8_reference
from kernels.minmax_uint8 import cuda as minmax_uint8_cuda
from kernels.minmax_uint8 import reference as minmax_uint8_reference
from kernels.qsgd import cuda as qsgd_cuda
from kernels.qsgd import reference as qsgd_reference
from kernels.shared.philox_reference import philox4x32
from kernels.sign_scale import cuda as sign_scale_cuda
from kernels.sign_scale import reference as sign_scale_reference
from tests.kernels.emulated_cuda import EmulatedCuda

try:
    import cupy
except ImportError:
    cupy = None

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Around vectors of 4 and 8, warps, one warp's tile of 512, a block's of 4096; several tiles.
SIZES = [1, 3, 7, 8, 9, 31, 32, 33, 512, 513, 4095, 4096, 4097, 12_301]
# Elements and bytes by which the chunks and the payload lie beside where a vector would begin.
OFFSETS = [(1, 1), (2, 4), (4, 2)]
LONG = 40_001  # ten tiles
SHIFTED = [(n, offsets) for n in (5, 513, 4097) for offsets in OFFSETS]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f16", "bf16"])
every_size = pytest.mark.parametrize("n", SIZES)
every_place = pytest.mark.parametrize(("n", "offsets"), [*((n, (0, 0)) for n in SIZES), *SHIFTED])


@pytest.fixture(scope="session")
def compiled() -> EmulatedCuda:
    return EmulatedCuda()


@pytest.fixture(
    params=[
        "emulated",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(
                    not torch.cuda.is_available() or cupy is None,
                    reason="needs an NVIDIA GPU and CuPy (the extra cuda12 or cuda13)",
                ),
            ],
        ),
    ]
)
def device(
    request: pytest.FixtureRequest, compiled: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> str:
    if request.param == "cuda":
        return "cuda"
    if shutil.which("g++") is None:
        pytest.skip("the emulation needs g++")
    compiled.install(monkeypatch)
    return "cpu"


@pytest.fixture(params=["one tile a piece", "several"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "several":
        monkeypatch.setattr(cuda_module, "_MANY_TILES", 8)
    cuda_module.tiling_of.cache_clear()
    yield
    cuda_module.tiling_of.cache_clear()


def chunks_of_every_kind(n: int, dtype: torch.dtype) -> Tensor:
    """[13, n]: numbers that try the formulas, and rows with one that is not finite."""
    normal = torch.randn(13, n, generator=torch.Generator().manual_seed(n))
    normal[1] = 0.0
    normal[2] = -0.0
    normal[3] = 0.1
    normal[4] = normal[4] * 1e-3 + 1000
    normal[5] *= 1e-41  # denormals
    normal[6] *= 6e4 / normal[6].abs().max()
    normal[7] *= 1e-7
    normal[8] = normal[8].sign()
    normal[9, n // 2] = torch.nan
    normal[10, n - 1] = torch.inf
    normal[11, 0] = -torch.inf
    normal[12, n // 3] *= 1e6
    return normal.to(dtype)


def moved(x: Tensor, offset: int) -> Tensor:
    """`x` at an address that is `offset` elements off."""
    buffer = x.new_empty(x.numel() + offset)
    return buffer[offset:].view_as(x).copy_(x)


def rubbish(*shape: int, device: str, offset: int) -> Tensor:
    return moved(torch.full(shape, 0xA5, dtype=torch.uint8, device=device), offset)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def encoded(compress: Callable[..., None], chunks: Tensor, num_bytes: int, *args: object) -> Tensor:
    payload = torch.full((len(chunks), num_bytes), 0x5A, dtype=torch.uint8)
    compress(chunks, payload, *args)
    return payload


# --- MinMaxUInt8 ---------------------------------------------------------------------------------


@every_dtype
@every_place
def test_minmax_uint8_there_and_back(
    device: str, n: int, dtype: torch.dtype, offsets: tuple[int, int]
) -> None:
    num_bytes = minmax_uint8_reference.wire_bytes(n)
    chunks = chunks_of_every_kind(n, dtype)
    expected = encoded(minmax_uint8_reference.compress, chunks, num_bytes)
    payload = rubbish(len(chunks), num_bytes, device=device, offset=offsets[1])
    minmax_uint8_cuda.compress(moved(chunks.to(device), offsets[0]), payload)
    assert_equal(payload, expected)

    decoded = moved(torch.empty_like(chunks, device=device), offsets[0])
    minmax_uint8_cuda.decompress(payload, decoded)
    assert_equal(decoded, minmax_uint8_decoded(expected, n, dtype))


def minmax_uint8_decoded(payload: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    decoded = torch.empty(len(payload), n, dtype=dtype)
    minmax_uint8_reference.decompress(payload, decoded)
    return decoded


@every_dtype
def test_minmax_uint8_decodes_any_bytes_as_the_reference_does(
    device: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    payload = torch.randint(256, (500, 24), dtype=torch.uint8, generator=generator)
    decoded = torch.empty(500, 11, dtype=dtype, device=device)
    minmax_uint8_cuda.decompress(payload.to(device), decoded)
    assert_equal(decoded, minmax_uint8_decoded(payload, 11, dtype))


@every_dtype
def test_minmax_uint8_decodes_every_code_of_any_range(device: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    ranges = torch.randn(2000, 2, generator=generator).sort(1).values
    ranges *= 2.0 ** torch.randint(-40, 40, (2000, 1), generator=generator)
    ranges += ranges[:, :1] * 10.0 ** torch.randint(-9, 9, (2000, 1), generator=generator)
    half_way = torch.tensor([[256.0, 511.0], [2048.0, 2303.0]])  # every other, for 16 bits
    ranges = torch.cat([ranges, half_way])
    codes = torch.arange(256).to(torch.uint8).expand(len(ranges), 256)
    payload = torch.cat([ranges.view(torch.uint8), codes], 1)
    decoded = torch.empty(len(ranges), 256, dtype=dtype, device=device)
    minmax_uint8_cuda.decompress(payload.to(device), decoded)
    assert_equal(decoded, minmax_uint8_decoded(payload, 256, dtype))


@every_place
@pytest.mark.parametrize("num_codes", [1, 3])
def test_minmax_uint8_average(
    device: str, n: int, offsets: tuple[int, int], num_codes: int
) -> None:
    num_bytes = minmax_uint8_reference.wire_bytes(n)
    chunks = chunks_of_every_kind(n, torch.float32).repeat(1, num_codes).view(-1, n)
    chunks *= torch.linspace(0.5, 2, len(chunks)).unsqueeze(1)
    payloads = encoded(minmax_uint8_reference.compress, chunks, num_bytes)
    payloads = payloads.view(-1, num_codes, num_bytes)
    mean = torch.empty(len(payloads), n)
    minmax_uint8_reference.decompress_mean(payloads, mean)
    expected = encoded(minmax_uint8_reference.compress, mean, num_bytes)

    on_device = moved(payloads.to(device), offsets[1])
    decoded = moved(torch.empty_like(mean, device=device), offsets[0])
    minmax_uint8_cuda.decompress_mean(on_device, decoded)
    assert_equal(decoded, mean)
    payload = rubbish(len(payloads), num_bytes, device=device, offset=offsets[1])
    minmax_uint8_cuda.average(on_device, n, payload)
    assert_equal(payload, expected)


@pytest.mark.usefixtures("pieces")
@every_dtype
def test_minmax_uint8_of_long_chunks(device: str, dtype: torch.dtype) -> None:
    chunks = chunks_of_every_kind(LONG, dtype)
    num_bytes = minmax_uint8_reference.wire_bytes(LONG)
    payload = rubbish(len(chunks), num_bytes, device=device, offset=0)
    minmax_uint8_cuda.compress(chunks.to(device), payload)
    expected = encoded(minmax_uint8_reference.compress, chunks, num_bytes)
    assert_equal(payload, expected)
    average = rubbish(len(chunks), num_bytes, device=device, offset=0)
    minmax_uint8_cuda.average(payload.unsqueeze(1), LONG, average)
    expected_average = torch.empty_like(expected)
    minmax_uint8_reference.average(expected.unsqueeze(1), LONG, expected_average)
    assert_equal(average, expected_average)


@pytest.mark.parametrize("at_a_time", [1, 8])
def test_minmax_uint8_however_few_blocks_run_at_a_time(
    at_a_time: int, compiled: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that waited for one that has not started would wait for ever."""
    if shutil.which("g++") is None:
        pytest.skip("the emulation needs g++")
    replace(compiled, at_a_time=at_a_time).install(monkeypatch)
    chunks = chunks_of_every_kind(LONG, torch.float32)
    num_bytes = minmax_uint8_reference.wire_bytes(LONG)
    payload = rubbish(len(chunks), num_bytes, device="cpu", offset=0)
    minmax_uint8_cuda.compress(chunks, payload)
    assert_equal(payload, encoded(minmax_uint8_reference.compress, chunks, num_bytes))


# --- SignScale -----------------------------------------------------------------------------------
# The scale is a sum in float64 whose order is the device's own. Rounded to float32 it could differ
# in the last bit where the sum lies half way between two; it does not for these numbers.


@every_dtype
@every_place
def test_sign_scale_there_and_back(
    device: str, n: int, dtype: torch.dtype, offsets: tuple[int, int]
) -> None:
    num_bytes = sign_scale_reference.wire_bytes(n)
    chunks = chunks_of_every_kind(n, dtype)
    expected = encoded(sign_scale_reference.compress, chunks, num_bytes)
    payload = rubbish(len(chunks), num_bytes, device=device, offset=offsets[1])
    sign_scale_cuda.compress(moved(chunks.to(device), offsets[0]), payload)
    assert_equal(payload, expected)

    decoded = moved(torch.empty(chunks.shape, device=device), offsets[0])
    sign_scale_cuda.decompress(payload, decoded)
    expected_decoded = torch.empty(chunks.shape)
    sign_scale_reference.decompress(expected, expected_decoded)
    assert_equal(decoded, expected_decoded)


@every_dtype
@every_place
def test_sign_scale_with_feedback(
    device: str, n: int, dtype: torch.dtype, offsets: tuple[int, int]
) -> None:
    num_bytes = sign_scale_reference.wire_bytes(n)
    chunks = chunks_of_every_kind(n, dtype)
    residual = torch.randn(chunks.shape, generator=torch.Generator().manual_seed(1))
    on_device = moved(residual.to(device), offsets[0])
    payload = rubbish(len(chunks), num_bytes, device=device, offset=offsets[1])
    sign_scale_cuda.compress_with_feedback(chunks.to(device), on_device, payload)

    expected = torch.empty(len(chunks), num_bytes, dtype=torch.uint8)
    sign_scale_reference.compress_with_feedback(chunks, residual, expected)
    assert_equal(payload, expected)
    assert_equal(on_device, residual)


@pytest.mark.usefixtures("pieces")
@every_dtype
def test_sign_scale_of_long_chunks(device: str, dtype: torch.dtype) -> None:
    num_bytes = sign_scale_reference.wire_bytes(LONG)
    chunks = chunks_of_every_kind(LONG, dtype)
    payload = rubbish(len(chunks), num_bytes, device=device, offset=0)
    sign_scale_cuda.compress(chunks.to(device), payload)
    assert_equal(payload, encoded(sign_scale_reference.compress, chunks, num_bytes))

    residual = torch.randn(chunks.shape, generator=torch.Generator().manual_seed(1))
    left = residual.to(device, copy=True)
    sign_scale_cuda.compress_with_feedback(chunks.to(device), left, payload)
    expected = torch.empty(len(chunks), num_bytes, dtype=torch.uint8)
    sign_scale_reference.compress_with_feedback(chunks, residual, expected)
    assert_equal(payload, expected)
    assert_equal(left, residual)


@every_size
def test_sign_scale_mean(device: str, n: int) -> None:
    num_bytes = sign_scale_reference.wire_bytes(n)
    chunks = chunks_of_every_kind(n, torch.float32)[:12]
    payloads = encoded(sign_scale_reference.compress, chunks, num_bytes).view(4, 3, num_bytes)
    decoded = torch.empty(4, n, device=device)
    sign_scale_cuda.decompress_mean(payloads.to(device), decoded)
    expected = torch.empty(4, n)
    sign_scale_reference.decompress_mean(payloads, expected)
    assert_equal(decoded, expected)


# --- QSGD ----------------------------------------------------------------------------------------


GROUP_SIZES = [1, 3, 500, 512, 515, 5000]
QSGD_CASES = [  # of large chunks only float32 with every group: dtypes differ in how they are read
    *product([5, 1023], GROUP_SIZES, DTYPES),
    *product([4096, 12_301], GROUP_SIZES, [torch.float32]),
    *product([4096, 12_301], [515], [torch.float16, torch.bfloat16]),
]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("n", "group_size", "dtype"), QSGD_CASES, ids=str)
def test_qsgd_there_and_back(
    device: str, n: int, bits: int, group_size: int, dtype: torch.dtype
) -> None:
    chunks = chunks_of_every_kind(n, dtype)
    chunks = torch.cat([chunks, chunks[:1]])  # two workers with seven chunks each
    streams = torch.tensor([[5, 6, 7], [2**32 - 1, 0, 1]])
    how = bits, group_size
    num_bytes = qsgd_reference.wire_bytes(n, *how)
    key = 2**32 - 2, 3
    expected = encoded(qsgd_reference.compress, chunks, num_bytes, streams, key, *how)
    offset = n % 3
    payload = rubbish(len(chunks), num_bytes, device=device, offset=offset)
    on_device = moved(chunks.to(device), offset)
    qsgd_cuda.compress(on_device, payload, streams.to(device), key, *how)
    assert_equal(payload, expected)

    decoded = moved(torch.empty(chunks.shape, device=device), offset)
    qsgd_cuda.decompress(payload, decoded, *how)
    expected_decoded = torch.empty(chunks.shape)
    qsgd_reference.decompress(expected, expected_decoded, *how)
    assert_equal(decoded, expected_decoded)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("n", [1, 31, 4097])
def test_qsgd_mean(device: str, n: int, bits: int) -> None:
    generator = torch.Generator().manual_seed(n)
    num_bytes = qsgd_reference.wire_bytes(n, bits, 100)
    chunks = torch.randn(6, n, generator=generator)
    streams = torch.tensor([[0, 0, 0]])
    payloads = encoded(qsgd_reference.compress, chunks, num_bytes, streams, (0, 0), bits, 100)
    payloads = payloads.view(2, 3, num_bytes)
    decoded = torch.empty(2, n, device=device)
    qsgd_cuda.decompress_mean(payloads.to(device), decoded, bits, 100)
    expected = torch.empty(2, n)
    qsgd_reference.decompress_mean(payloads, expected, bits, 100)
    assert_equal(decoded, expected)


MEANS = [  # codes of a mean, bytes by which payloads are off, and QSGD's group
    *product([1, 2, 3, 4, 5, 9], [0], [512]),
    *product([5], [1, 4], [512, 500, 3]),
]


@pytest.mark.parametrize("codec", ["minmax_uint8", "sign_scale", "qsgd", "fp8"])
@pytest.mark.parametrize(("num_codes", "offset", "group_size"), MEANS)
def test_means_of_any_number_of_codes_at_any_address(
    device: str, codec: str, num_codes: int, offset: int, group_size: int
) -> None:
    n, options = 4500, {"qsgd": (4, group_size), "fp8": ("fp8_e4m3",)}.get(codec, ())
    reference = import_module(f"kernels.{codec}.reference")
    chunks = torch.randn(2 * num_codes, n, generator=torch.Generator().manual_seed(num_codes))
    num_bytes = reference.wire_bytes(n, *(options if codec == "qsgd" else ()))
    draws = (torch.tensor([[0, 0, 0]]), (0, 0)) if codec == "qsgd" else ()
    payloads = encoded(reference.compress, chunks, num_bytes, *draws, *options)
    payloads = payloads.view(2, num_codes, num_bytes)
    decoded = torch.empty(2, n, device=device)
    import_module(f"kernels.{codec}.cuda").decompress_mean(
        moved(payloads.to(device), offset), decoded, *options
    )
    expected = torch.empty(2, n)
    reference.decompress_mean(payloads, expected, *options)
    assert_equal(decoded, expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qsgd_decodes_every_code(device: str, bits: int) -> None:
    """A level over S is rounded as by a division, that of a code which no encoder sends too."""
    codes = torch.arange(256, dtype=torch.uint8)
    norms = torch.tensor([1.0, 0.1, 3.4e38, 1e-40, torch.nan]).unsqueeze(1)
    payload = torch.cat([norms.view(torch.uint8), codes.expand(5, 256)], 1)
    n = 256 * 8 // bits
    decoded, expected = torch.empty(5, n, device=device), torch.empty(5, n)
    qsgd_cuda.decompress(payload.to(device), decoded, bits, n)
    qsgd_reference.decompress(payload, expected, bits, n)
    assert_equal(decoded, expected)


NEAR_LIMITS = [-140, -126, -101, -100, -99, -60, -1, 0, 1, 19, 20, 21, 126]


@pytest.mark.parametrize("bits", [2, 8])
@every_dtype
def test_qsgd_divides_by_any_norm(device: str, bits: int, dtype: torch.dtype) -> None:
    """A product by a reciprocal, corrected twice, where that is as good; tiny numbers are not."""
    generator = torch.Generator().manual_seed(bits)
    n, group_size = 64 * len(NEAR_LIMITS) * 8, 64
    norms = (torch.tensor(NEAR_LIMITS).double().exp2() * 1.7).repeat_interleave(8 * group_size)
    chunks = torch.rand(3, n, generator=generator).double() * norms
    smaller = torch.randint(0, 120, (n,), generator=generator).double().neg().exp2()
    chunks[1] *= smaller  # each exponent
    chunks[2] = (chunks[2] / norms * 128).round() / 128 * norms  # many levels met
    chunks = chunks.float().to(dtype).nan_to_num(posinf=1.0)
    how, key = (bits, group_size), (1, 2)
    num_bytes = qsgd_reference.wire_bytes(n, *how)
    streams = torch.tensor([[1, 2, 3]])
    payload = rubbish(3, num_bytes, device=device, offset=0)
    qsgd_cuda.compress(chunks.to(device), payload, streams.to(device), key, *how)
    assert_equal(payload, encoded(qsgd_reference.compress, chunks, num_bytes, streams, key, *how))


DRAW_WORDS = (
    cuda_module.read_source("shared/philox.cuh")
    + """
extern "C" __global__ void draw_words(u32* words, i64 first) {
    const Philox philox{{2, 0xFFFFFFFF, 7}, {9, 11}};
    u32 drawn[4];
    philox.draw_from(first + 4 * threadIdx.x, drawn);
    for (int j = 0; j < 4; ++j) words[4 * threadIdx.x + j] = drawn[j];
}
"""
)


@pytest.mark.parametrize("element", [0, 3, 2**34 - 61, 2**35 + 2])
def test_words_of_the_elements_of_any_row(device: str, element: int) -> None:
    module = import_module("cupy").RawModule(code=DRAW_WORDS, options=cuda_module.OPTIONS)
    words = torch.empty(128, dtype=torch.int32, device=device)
    module.get_function("draw_words")((1,), (32,), (words.data_ptr(), element))

    first = element // 4
    counters = torch.arange(first, first + 33)
    stream = map(torch.tensor, (2, 2**32 - 1, 7))
    expected = torch.stack(philox4x32((counters, *stream), (9, 11)), 1).flatten()
    assert_equal(words.long() & 0xFFFFFFFF, expected[element % 4 :][:128])


# --- fp8 -----------------------------------------------------------------------------------------


@every_dtype
@every_place
@pytest.mark.parametrize("wire", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_there_and_back(
    device: str, n: int, dtype: torch.dtype, offsets: tuple[int, int], wire: str
) -> None:
    num_bytes = fp8_reference.wire_bytes(n)
    chunks = chunks_of_every_kind(n, dtype)
    expected = encoded(fp8_reference.compress, chunks, num_bytes, wire)
    payload = rubbish(len(chunks), num_bytes, device=device, offset=offsets[1])
    fp8_cuda.compress(moved(chunks.to(device), offsets[0]), payload, wire)
    assert_equal(payload, expected)

    decoded = moved(torch.empty(chunks.shape, device=device), offsets[0])
    fp8_cuda.decompress(payload, decoded, wire)
    expected_decoded = torch.empty(chunks.shape)
    fp8_reference.decompress(expected, expected_decoded, wire)
    assert_equal(decoded, expected_decoded)


@pytest.mark.usefixtures("pieces")
@every_dtype
def test_fp8_of_long_chunks(device: str, dtype: torch.dtype) -> None:
    num_bytes = fp8_reference.wire_bytes(LONG)
    chunks = chunks_of_every_kind(LONG, dtype)
    payload = rubbish(len(chunks), num_bytes, device=device, offset=0)
    fp8_cuda.compress(chunks.to(device), payload, "fp8_e4m3")
    assert_equal(payload, encoded(fp8_reference.compress, chunks, num_bytes, "fp8_e4m3"))


@pytest.mark.parametrize("wire", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_mean_of_every_code(device: str, wire: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(2, 3, 1)
    scales = torch.tensor([[1.0, 0.5, 3.0], [1e-38, 1e-40, 2.0]]).unsqueeze(-1)
    payloads = torch.cat([scales.view(torch.uint8), codes], -1)
    decoded = torch.empty(2, 256, device=device)
    fp8_cuda.decompress_mean(payloads.to(device), decoded, wire)
    expected = torch.empty(2, 256)
    fp8_reference.decompress_mean(payloads, expected, wire)
    assert_equal(decoded, expected)
