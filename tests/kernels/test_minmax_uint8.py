"""MinMaxUInt8: every back end against one set of properties and, bit for bit, the reference."""

from dataclasses import dataclass

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.minmax_uint8 import wire_bytes
from tests.kernels import backends
from tests.kernels.backends import MINMAX

HALVES = [torch.float16, torch.bfloat16]
FLOAT32_MAX = float(np.finfo(np.float32).max)
SIZES = [1, 7, 8, 9, 1023, 1024, 1025, 1_000_000]
reproducible = settings(derandomize=True, max_examples=200)


@dataclass(frozen=True)
class Backend:
    """This codec on one of the back ends."""

    on: backends.Backend

    def compress(self, chunks: Tensor) -> Tensor:
        return self.on.compress(MINMAX, chunks)

    def decompress(self, payload: Tensor, n: int) -> Tensor:
        return self.on.decompress(MINMAX, payload, n)

    def round_trip(self, *values: float) -> list[float]:
        return self.decompress(self.compress(torch.tensor([values])), len(values))[0].tolist()


REFERENCE = Backend(backends.REFERENCE)
FAST = [pytest.param(Backend(p.values[0]), id=p.id, marks=p.marks) for p in backends.FAST]
every_backend = pytest.mark.parametrize("backend", [pytest.param(REFERENCE, id="reference"), *FAST])


def codes(payload: Tensor, n: int) -> list[int]:
    return payload[0, 8 : 8 + n].tolist()


def assert_within_bound(decoded: Tensor, x: Tensor) -> None:
    """The bound that `kernels.minmax_uint8` documents and derives, in float64."""
    decoded, x = decoded.double(), x.double()
    mn, mx = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (mx - mn + 1e-7) / 255
    bound = (0.5 + 1e-4) * step + 2.0**-22 * torch.maximum(mn.abs(), mx.abs())
    assert torch.isfinite(decoded).all()
    assert ((decoded - x).abs() <= bound).all()


def assert_not_encoded(backend: Backend, *values: float) -> None:
    payload = backend.compress(torch.tensor([values]))
    assert codes(payload, len(values)) == [0] * len(values)
    assert torch.isnan(backend.decompress(payload, len(values))).all()


@st.composite
def finite_chunks(draw: st.DrawFn) -> Tensor:
    """[2, n] chunks of any width at any offset, so that levels of every size occur."""
    offset = draw(st.floats(-(2.0**66), 2.0**66, width=32))
    exponent = draw(st.integers(-30, 20))
    n = draw(st.integers(1, 40))
    unit = draw(hnp.arrays(np.float32, (2, n), elements=st.floats(-1, 1, width=32)))
    return torch.from_numpy((offset + unit * 10.0**exponent).astype(np.float32))


def any_floats() -> st.SearchStrategy[Tensor]:
    """[3, n] of arbitrary bits: NaN of both signs, infinities, denormals, the largest numbers."""
    shapes = st.tuples(st.just(3), st.integers(1, 40))
    bits = hnp.arrays(np.uint32, shapes).map(lambda x: x.view(np.float32))
    floats = hnp.arrays(np.float32, shapes, elements=st.floats(width=32))
    denormals = hnp.arrays(np.float32, shapes, elements=st.floats(0, 2.0**-125, width=32))
    return st.one_of(bits, floats, denormals).map(torch.from_numpy)


# --- the formula, on every back end ------------------------------------------------------------


def oracle(chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(payload, decoded) of one finite chunk, by NumPy in float32."""
    f = np.float32
    mn, mx = chunk.min(), chunk.max()
    scale = f(255) / (mx - mn + f(1e-7))
    upper = np.rint(mx * scale)
    lower = upper - f(255)
    levels = np.clip(np.minimum(np.rint(chunk * scale), upper) - lower, f(0), f(255))
    payload = np.zeros(wire_bytes(chunk.size), np.uint8)
    payload[:8] = np.array([mn, mx], "<f4").view(np.uint8)
    payload[8 : 8 + chunk.size] = levels.astype(np.uint8)
    return payload, (levels + lower) / scale


@every_backend
@pytest.mark.parametrize("n", SIZES)
def test_equals_the_formula_at_every_size(backend: Backend, n: int) -> None:
    chunks = torch.randn(2, n, generator=torch.Generator().manual_seed(n)) * 3 + 1
    payload = backend.compress(chunks)
    decoded = backend.decompress(payload, n)
    for row in range(2):
        expected_payload, expected = oracle(chunks[row].numpy())
        np.testing.assert_array_equal(payload[row].numpy(), expected_payload)
        np.testing.assert_array_equal(decoded[row].numpy(), expected)


@every_backend
def test_payload_worked_out_by_hand(backend: Backend) -> None:
    payload = backend.compress(torch.tensor([[0.0, 0.5, 1.5, 2.5, 255.0]]))
    header = [0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x7F, 0x43]  # 0 and 255, little endian
    assert payload.tolist() == [[*header, 0, 0, 2, 2, 255, 0, 0, 0]]  # rounds half to even


@every_backend
@reproducible
@given(chunks=finite_chunks())
@example(chunks=torch.tensor([[0.0]]))
def test_error_is_half_a_step_and_some_ulps(backend: Backend, chunks: Tensor) -> None:
    decoded = backend.decompress(backend.compress(chunks), chunks.shape[1])
    assert_within_bound(decoded, chunks)


@every_backend
@reproducible
@given(chunks=finite_chunks())
def test_order_is_kept(backend: Backend, chunks: Tensor) -> None:
    ascending = chunks.sort(dim=1).values
    decoded = backend.decompress(backend.compress(ascending), chunks.shape[1])
    assert (decoded.diff(dim=1) >= 0).all()


@every_backend
@reproducible
@given(
    lowest=st.integers(-(2**15), 2**15),
    exponent=st.integers(0, 100),
    inner=st.lists(st.integers(0, 255), max_size=20),
)
def test_numbers_on_the_grid_survive_unchanged(
    backend: Backend, lowest: int, exponent: int, inner: list[int]
) -> None:
    levels = torch.tensor([[0, 255, *inner]]) + lowest
    chunks = levels.float() * 2.0**exponent
    payload = backend.compress(chunks)
    decoded = backend.decompress(payload, chunks.shape[1])
    assert torch.equal(decoded, chunks)
    assert torch.equal(backend.compress(decoded), payload)


# --- the traps, by name ------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("mx", [1.0, 3.0, 1000.0, 2.0**90])
def test_symmetric_chunk_does_not_wrap_below_zero(backend: Backend, mx: float) -> None:
    payload = backend.compress(torch.tensor([[-mx, 0.0, mx]]))
    assert codes(payload, 3) == [0, 127, 255]  # the first level is -1, which a cast makes 255
    assert_within_bound(backend.decompress(payload, 3), torch.tensor([[-mx, 0.0, mx]]))


@every_backend
@pytest.mark.parametrize("value", [0.25, 1.0, -1.0])
def test_far_offset_level_256_does_not_wrap(backend: Backend, value: float) -> None:
    scale = np.float32(255) / np.float32(1e-7)
    upper = np.rint(np.float32(value) * scale)
    assert upper - (upper - np.float32(255)) == 256  # the trap is there: float32 lost a unit
    payload = backend.compress(torch.tensor([[value]]))
    assert codes(payload, 1) == [255]
    assert_within_bound(backend.decompress(payload, 1), torch.tensor([[value]]))


@every_backend
@pytest.mark.parametrize("value", [1e-45, 1e-40, 1e-7, 0.1, 1.0, -1.0, 12345.678, -1e20, 1e29])
def test_constant_chunk(backend: Backend, value: float) -> None:
    x = torch.full((1, 9), value)
    decoded = backend.decompress(backend.compress(x), 9)
    assert_within_bound(decoded, x)
    assert (decoded == decoded[0, 0]).all()


@every_backend
@pytest.mark.parametrize("width", [0.0, 1.0, 64.0, 1000.0])
def test_chunk_far_from_zero(backend: Backend, width: float) -> None:
    x = torch.linspace(1e9, 1e9 + width, 33).unsqueeze(0)
    assert_within_bound(backend.decompress(backend.compress(x), 33), x)


@every_backend
def test_zeros_stay_zero(backend: Backend) -> None:
    assert backend.round_trip(0.0, 0.0, 0.0) == [0.0, 0.0, 0.0]
    assert backend.round_trip(-0.3, 0.0, 7.1)[1] == 0.0
    assert backend.round_trip(0.0, 1e-3)[0] == 0.0
    assert backend.round_trip(-1e-3, 0.0)[1] == 0.0


@every_backend
def test_signs_of_zero_give_equal_bytes(backend: Backend) -> None:
    payloads = backend.compress(torch.tensor([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [0.0, 0.0]]))
    assert (payloads == payloads[0]).all()


@every_backend
def test_denormals(backend: Backend) -> None:
    x = torch.tensor([[1e-45, -1e-45, 1e-39, -3e-42, 0.0]])
    assert (x[0, :4] != 0).all()
    assert_within_bound(backend.decompress(backend.compress(x), 5), x)


@every_backend
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 17, 99])
def test_not_finite_decodes_to_nan(backend: Backend, bad: float, position: int) -> None:
    values = [float(i) for i in range(100)]
    values[position] = bad
    assert_not_encoded(backend, *values)
    assert_not_encoded(backend, bad)


@every_backend
@pytest.mark.parametrize(
    "values",
    [
        pytest.param((-3e38, 3e38), id="mx - mn"),
        pytest.param((1e30, 1e30), id="mx * scale"),
        pytest.param((-1e30, -1e30), id="mn * scale"),
        pytest.param((1.3e38, 2e38, FLOAT32_MAX), id="decoded mx"),
        pytest.param((-FLOAT32_MAX, -1.3e38), id="decoded mn"),
    ],
)
def test_overflow_decodes_to_nan(backend: Backend, values: tuple[float, ...]) -> None:
    assert_not_encoded(backend, *values)


@every_backend
def test_huge_numbers_that_do_not_overflow(backend: Backend) -> None:
    x = torch.tensor([[-1.6e38, 0.0, 1.6e38]])
    assert_within_bound(backend.decompress(backend.compress(x), 3), x)


@every_backend
def test_bad_chunk_leaves_the_others_alone(backend: Backend) -> None:
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    alone = backend.compress(x[[0, 2]])
    x[1, 3] = torch.nan
    assert torch.equal(backend.compress(x)[[0, 2]], alone)


# --- the fast back ends against the reference --------------------------------------------------


@pytest.mark.parametrize("backend", FAST)
@reproducible
@given(chunks=st.one_of(any_floats(), finite_chunks()))
def test_equals_the_reference_bit_for_bit(backend: Backend, chunks: Tensor) -> None:
    payload = backend.compress(chunks)
    assert torch.equal(payload, REFERENCE.compress(chunks))
    decoded, expected = (b.decompress(payload, chunks.shape[1]) for b in (backend, REFERENCE))
    torch.testing.assert_close(decoded, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@reproducible
@given(payload=hnp.arrays(np.uint8, (2, 24)))
def test_decodes_any_bytes_as_the_reference_does(
    backend: Backend, dtype: torch.dtype, payload: np.ndarray
) -> None:
    ours, expected = (
        b.on.decompress(MINMAX, torch.from_numpy(payload), 11, dtype) for b in (backend, REFERENCE)
    )
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@every_backend
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("n", [1, 9, 8193, 300_001])
def test_16_bits_are_the_clamped_number_rounded(
    backend: Backend, dtype: torch.dtype, n: int
) -> None:
    chunks = torch.randn(3, n, generator=torch.Generator().manual_seed(n)) * 3 + 1
    chunks[1, 0] = torch.nan
    payload = backend.compress(chunks)
    mn, mx = chunks.amin(1, keepdim=True), chunks.amax(1, keepdim=True)
    expected = backend.decompress(payload, n).clamp(mn, mx).to(dtype)
    ours = backend.on.decompress(MINMAX, payload, n, dtype)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)
    assert ours[[0, 2]].isfinite().all()


@every_backend
@pytest.mark.parametrize("values", [(-60504.0, 65504.0), (-65504.0, 12000.0)])
def test_largest_float16_does_not_become_infinite(
    backend: Backend, values: tuple[float, ...]
) -> None:
    payload = backend.compress(torch.tensor([values]))
    assert torch.isinf(backend.decompress(payload, 2).half()).any()  # half a step too far
    assert torch.isfinite(backend.on.decompress(MINMAX, payload, 2, torch.float16)).all()
