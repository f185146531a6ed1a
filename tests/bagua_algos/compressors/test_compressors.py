"""One suite over all compressors beside MinMaxUInt8, and what each promises for itself. A new one
needs a row in `rows_compressors.py`, and a YAML.
"""

import importlib
import math
import pkgutil
import struct
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf

import bagua_algos.compressors
from bagua_algos.compressors import QSGD, Cast, Largest, SignScale, Sparse
from bagua_algos.compressors.cast import WIRE_DTYPES
from bagua_algos.compressors.compressor import (
    Compressor,
    Draw,
    ErrorFeedback,
    bits_per_element,
    forget_overflow_,
    relative_error,
    warn_of_bias,
)
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from host.conf import PACKAGED
from kernels import dispatch
from tests.bagua_algos.rows_compressors import EVERY, ROWS

NAN, INF = float("nan"), float("inf")
every_compressor = pytest.mark.parametrize("compressor", ROWS, ids=str)
DRAW = Draw(ranks=(0, 1, 2), step=0)


def numbers(n, seed=0):
    return torch.randn(3, 4, n, generator=torch.Generator().manual_seed(seed))


def round_trip(compressor, x, draw=DRAW):
    return compressor.decompress(compressor.compress(x, draw), x.shape[-1])


def qsgd_of(*values, bits, draw=None):
    x = torch.tensor([values])
    return round_trip(QSGD(bits=bits), x, draw or Draw(ranks=(0,), step=0))[0].tolist()


@pytest.mark.parametrize(
    ("compressor", "codecs"),
    [
        (MinMaxUInt8(), ["minmax_uint8"]),
        (SignScale(), ["sign_scale"]),
        (QSGD(), ["qsgd"]),
        (Cast(wire="fp8_e5m2"), ["fp8"]),
        (Cast(wire="bf16"), []),
        (Largest(), []),
    ],
    ids=str,
)
def test_load_is_of_the_kernels_that_a_code_has(monkeypatch, compressor, codecs):
    loaded, device = [], torch.device("cuda", 1)
    monkeypatch.setattr(dispatch, "load", lambda *what: loaded.append(what))
    compressor.load(device)
    assert loaded == [(codec, device) for codec in codecs]


@every_compressor
@pytest.mark.parametrize("n", [0, 1, 3, 16, 47, 48, 49, 1000])
def test_payloads_are_as_long_as_predicted(compressor, n):
    payload = compressor.compress(numbers(n), DRAW)
    assert payload.dtype == torch.uint8
    assert payload.shape == (3, 4, compressor.wire_bytes(n))
    decoded = compressor.decompress(payload, n)
    assert decoded.dtype == torch.float32
    assert decoded.shape == (3, 4, n)


def test_codes_are_really_packed():
    n = 1 << 20
    assert SignScale().wire_bytes(n) == n // 8 + 4
    for bits in (2, 4, 8):
        assert QSGD(bits=bits, group_size=512).wire_bytes(n) == n * bits // 8 + 4 * n // 512
    assert QSGD(bits=2).wire_bytes(17) == 4 + 8  # of 34 bits, and padded to a multiple of 4 bytes
    assert [Cast(wire=w).wire_bytes(n) for w in ("bf16", "fp8_e4m3")] == [2 * n, n + 4]
    assert Largest(ratio=1 / 64).wire_bytes(n) == 8 * n // 64


@every_compressor
def test_a_chunk_is_coded_on_its_own_wherever_its_bytes_lie(compressor):
    """What follows in memory, and an odd address, must not matter."""
    x = numbers(50)
    x[1, 2] *= 1000
    payload = compressor.compress(x, DRAW)
    odd = torch.zeros(payload.numel() + 1, dtype=torch.uint8)[1:].view(payload.shape)
    odd.copy_(payload)
    assert torch.equal(compressor.decompress(odd, 50), compressor.decompress(payload, 50))
    others = x.clone()
    others[1, 2] = 0
    unchanged = torch.ones(3, 4, dtype=torch.bool)
    unchanged[1, 2] = False
    assert torch.equal(compressor.compress(others, DRAW)[unchanged], payload[unchanged])


@every_compressor
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_chunk_with_nan_or_infinity_decodes_to_nan(compressor, bad):
    x = numbers(100)
    x[1, 2, 77] = bad
    decoded = round_trip(compressor, x)
    assert decoded[1, 2].isnan().all()
    decoded[1, 2] = 0
    assert decoded.isfinite().all()


@every_compressor
def test_zeros_stay_zeros(compressor):
    assert round_trip(compressor, torch.zeros(3, 4, 50)).eq(0).all()


@every_compressor
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30])
def test_no_magnitude_is_too_small_or_too_large(compressor, scale):
    decoded = round_trip(compressor, numbers(50) * scale)
    if compressor == Cast(wire="fp16") and scale > 1:
        assert decoded.isnan().all()  # 65504 is the greatest that fp16 has
    else:
        assert decoded.isfinite().all()
        assert decoded.abs().max() <= 10 * scale
        if scale > 1e-40 and compressor != Cast(wire="fp16"):  # which has neither of these
            assert decoded.abs().max() >= 0.5 * scale


@every_compressor
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_half_and_double_precision_are_taken_too(compressor, dtype):
    x = numbers(50).to(dtype)
    assert torch.equal(compressor.compress(x, DRAW), compressor.compress(x.float(), DRAW))


@every_compressor
def test_what_was_sent_and_the_residual_add_up_to_what_there_was(compressor):
    x, residual = numbers(50), numbers(50, seed=1)
    expected = x + residual
    payload = ErrorFeedback(compressor).compress(x, residual, DRAW)
    torch.testing.assert_close(compressor.decompress(payload, 50) + residual, expected)


@every_compressor
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_residual_has_zeros_for_what_overflowed(compressor, bad):
    x, residual = numbers(50), numbers(50, seed=1)
    x[1, 2, 7] = bad
    ErrorFeedback(compressor).compress(x, residual, DRAW)
    assert residual.isfinite().all()
    assert residual[1, 2].eq(0).all()  # all of that chunk is decoded to NaN


def test_all_that_is_not_finite_is_forgotten():
    left_out = torch.tensor([1.0, NAN, INF, -INF, -2.0])
    forget_overflow_(left_out)
    assert left_out.tolist() == [1.0, 0.0, 0.0, 0.0, -2.0]


@pytest.mark.parametrize("compressor", EVERY, ids=str)
def test_means_are_of_what_is_decoded(compressor):
    payload = compressor.compress(numbers(50), DRAW)
    decoded = compressor.decompress(payload, 50)
    mean = compressor.decompress_mean(payload, 50)
    assert torch.equal(mean, (decoded[:, 0] + decoded[:, 1] + decoded[:, 2] + decoded[:, 3]) / 4)
    code = compressor.average(payload, 50, DRAW)
    assert torch.equal(code, compressor.compress(mean, DRAW))


@pytest.mark.parametrize("compressor", EVERY, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_decodes_into_what_stands(compressor, dtype):
    x = numbers(50)
    payload = compressor.compress(x, DRAW)
    expected = compressor.decompress(payload, 50)
    if isinstance(compressor, MinMaxUInt8) and dtype.itemsize < 4:
        expected.clamp_(x.amin(-1, keepdim=True), x.amax(-1, keepdim=True))
    expected = expected.to(dtype)
    whole, strided = torch.empty(3, 4, 50, dtype=dtype), torch.empty(3, 4, 100, dtype=dtype)
    for out in (whole, strided[..., ::2]):
        compressor.decompress_into(payload, out)
        assert torch.equal(out, expected)


def test_what_is_decoded_into_float16_does_not_become_infinite():
    """MinMaxUInt8's greatest may lie half a step above what it was."""
    x = torch.tensor([[-60504.0, 65504.0]], dtype=torch.float16)
    payload = MinMaxUInt8().compress(x)
    whole, strided = torch.empty_like(x), torch.empty(1, 4, dtype=torch.float16)[:, ::2]
    for out in (whole, strided):
        MinMaxUInt8().decompress_into(payload, out)
        assert out.isfinite().all()
        assert out[0, 1] == 65504


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_kernel_for_error_feedback_changes_nothing(dtype):
    class WithoutOne:
        compress, decompress = SignScale().compress, SignScale().decompress

    x, residuals = numbers(50).to(dtype), [numbers(50, seed=1).to(dtype) for _ in range(2)]
    with_one = ErrorFeedback(SignScale()).compress(x, residuals[0])
    assert torch.equal(with_one, ErrorFeedback(WithoutOne()).compress(x, residuals[1]))
    assert torch.equal(*residuals)


@pytest.mark.parametrize("compressor", [c for c in EVERY if not c.unbiased], ids=str)
def test_a_biased_code_leaves_out_less_than_it_was_given(compressor):
    """A contraction: what error feedback needs (arXiv 1901.09847, assumption A)."""
    x = numbers(50)
    lost = x - round_trip(compressor, x)
    assert (lost.norm(dim=-1) < x.norm(dim=-1)).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qsgd_is_right_in_the_mean_and_within_a_level_always(bits):
    compressor, num_draws, n = QSGD(bits=bits, group_size=16), 4000, 40
    x = numbers(n)[0, 0]
    decoded = round_trip(
        compressor, x.expand(num_draws, n), Draw(ranks=tuple(range(num_draws)), step=0)
    )
    group_norms = torch.stack([g.abs().max() for g in x.split(16)])
    level = (group_norms / (2 ** (bits - 1) - 1)).repeat_interleave(16)[:n]
    assert ((decoded - x).abs() <= level * 1.0001).all()
    # A level's variance is at most a quarter of its square.
    assert ((decoded.mean(0) - x).abs() < 5 * level / 2 / num_draws**0.5).all()


def test_qsgd_keeps_the_norm_and_what_is_on_a_level():
    assert qsgd_of(7.0, -7.0, 3.0, 0.0, -1.0, bits=4) == [7.0, -7.0, 3.0, 0.0, -1.0]
    assert qsgd_of(0.3, -0.3, 0.0, bits=2) == [
        struct.unpack("f", struct.pack("f", v))[0] for v in (0.3, -0.3, 0.0)
    ]


def test_qsgd_draws_by_seed_rank_step_bucket_and_stage():
    x = numbers(48)[:1].expand(3, 4, 48)
    compressor = QSGD(bits=2)
    first = compressor.compress(x, DRAW)
    assert torch.equal(compressor.compress(x, DRAW), first)
    others = [
        QSGD(bits=2, seed=1).compress(x, DRAW),
        compressor.compress(x, Draw(ranks=(0, 1, 2), step=1)),
        compressor.compress(x, Draw(ranks=(0, 1, 2), step=0, bucket=1)),
        compressor.compress(x, Draw(ranks=(0, 1, 2), step=0, stage=1)),
        compressor.compress(x, Draw(ranks=(3, 4, 5), step=0)),
    ]
    rows = torch.cat([first, *others]).flatten(0, 1)
    assert len(rows.unique(dim=0)) == len(rows), "two chunks drew the same"


def test_a_real_worker_draws_what_its_row_of_a_simulated_run_draws():
    x = numbers(48)
    together = QSGD().compress(x, Draw(ranks=(0, 1, 2), step=5, bucket=2))
    for rank in range(3):
        alone = QSGD().compress(x[rank : rank + 1], Draw(ranks=(rank,), step=5, bucket=2))
        assert torch.equal(alone[0], together[rank])


@pytest.mark.parametrize("draw", [None, Draw(ranks=(0,), step=0)])
def test_qsgd_without_a_draw_of_these_workers_says_what_it_needs(draw):
    with pytest.raises(ValueError, match=r"QSGD rounds at random.* the 3 workers"):
        QSGD().compress(numbers(8), draw)


def test_sign_scale_is_the_mean_magnitude_with_the_sign():
    x = torch.tensor([[1.0, -2.0, 0.0, -0.0, -7.0]])
    assert round_trip(SignScale(), x)[0].tolist() == [2.0, -2.0, 2.0, 2.0, -2.0]


def test_sign_scale_does_not_overflow_where_the_sum_would():
    assert round_trip(SignScale(), torch.full((1, 9), 3e38)).eq(3e38).all()


@pytest.mark.parametrize(("wire", "relative"), [("fp8_e4m3", 2**-4), ("fp8_e5m2", 2**-3)])
def test_fp8_keeps_the_greatest_and_rounds_to_its_mantissa(wire, relative):
    x = numbers(1000) * 1e-6
    decoded = round_trip(Cast(wire=wire), x)
    amax = x.abs().amax(-1, keepdim=True)
    info = torch.finfo(WIRE_DTYPES[wire])
    floor = amax / info.max * info.tiny  # subnormals below
    assert ((decoded - x).abs() <= relative * x.abs().clamp(min=floor) * 1.001).all()
    torch.testing.assert_close(decoded.abs().amax(-1, keepdim=True), amax)


@pytest.mark.parametrize(("wire", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_sixteen_bits_are_torchs_own_cast(wire, dtype):
    x = numbers(50)
    assert torch.equal(round_trip(Cast(wire=wire), x), x.to(dtype).float())


def test_the_error_of_a_sign_is_that_of_a_normal_distribution():
    """E|x| is sqrt(2/pi), so a sign with the mean magnitude leaves out 1 - 2/pi of the square."""
    assert relative_error(SignScale()) == pytest.approx(math.sqrt(1 - 2 / math.pi), rel=0.02)
    assert 0 < relative_error(Cast(wire="bf16")) < 2**-9


def test_largest_keeps_the_largest():
    x = torch.tensor([[1.0, -5.0, 0.5, 3.0, -2.0]])
    assert round_trip(Largest(ratio=0.4), x)[0].tolist() == [0, -5, 0, 3, 0]
    assert torch.equal(round_trip(Largest(ratio=1.0), x), x)
    assert Largest(ratio=1e-9).num_kept(7) == 1


@pytest.mark.parametrize(
    ("ratio", "num_elements", "kept"),
    [(0.07, 100, 7), (0.55, 100, 55), (0.14, 50, 7), (0.1, 11, 2)],
)
def test_largest_keeps_its_ratio_as_it_is_written(ratio, num_elements, kept):
    """0.07 * 100 is a little over 7 in floating point."""
    assert Largest(ratio=ratio).num_kept(num_elements) == kept


def test_a_sparse_payload_holds_values_then_indices():
    sparse = Sparse(values=torch.tensor([[1.5, -2.0]]), indices=torch.tensor([[70_000, 3]]))
    payload = sparse.pack()
    assert bytes(payload[0].tolist()) == struct.pack("<ffii", 1.5, -2.0, 70_000, 3)
    assert payload.shape[-1] == Sparse.wire_bytes(2)
    again = Sparse.unpack(payload)
    assert torch.equal(again.values, sparse.values)
    assert torch.equal(again.indices, sparse.indices)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QSGD(bits=3), "bits must be 2, 4 or 8, got 3"),
        (lambda: QSGD(group_size=0), "group_size must be a whole number of at least 1, got 0"),
        (lambda: QSGD(seed=-1), "seed must be .* got -1"),
        (lambda: QSGD(seed=2**32), "seed must be .* got 4294967296"),
        (lambda: Cast(wire="fp4"), "wire must be one of bf16.*got 'fp4'"),
        (lambda: Largest(ratio=0.0), r"ratio must be in \(0, 1\], got 0"),
        (lambda: Largest(ratio=NAN), "ratio must be .* got nan"),
        (lambda: Largest(ratio=1.001), r"ratio must be in \(0, 1\], got 1.001"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_seed_has_32_bits():
    greatest = QSGD(seed=2**32 - 1)
    assert not torch.equal(greatest.compress(numbers(50), DRAW), QSGD().compress(numbers(50), DRAW))


def test_every_compressor_has_a_row_and_a_yaml():
    package = bagua_algos.compressors
    files = (PACKAGED / "algo" / "compressor").glob("*.yaml")
    chosen = {get_class(OmegaConf.load(file)["_target_"]) for file in files}
    tried = {type(compressor) for compressor in EVERY}
    for name in [module.name for module in pkgutil.iter_modules(package.__path__)]:
        module = importlib.import_module(f"{package.__name__}.{name}")
        for value in vars(module).values():
            if _is_compressor(value) and value.__module__ == module.__name__:
                assert value in tried, f"{value.__name__} has no row in rows_compressors.py"
                assert value in chosen, f"{value.__name__} has no YAML in conf/algo/compressor"


def _is_compressor(value: object) -> bool:
    return isinstance(value, type) and Compressor in value.__mro__[1:]


@dataclass(frozen=True)
class OfBits(Compressor):
    """A biased code whose only property is its size."""

    bits: float
    unbiased: ClassVar[bool] = False

    def wire_bytes(self, num_elements):
        return round(self.bits * num_elements / 8)

    def compress(self, x, draw=None):
        raise NotImplementedError

    def decompress(self, payload, num_elements):
        raise NotImplementedError


def test_a_biased_code_of_fewer_than_four_bits_is_warned_of():
    assert bits_per_element(OfBits(4.0)) == 4.0
    warn_of_bias(OfBits(4.0), error_feedback=False)
    warn_of_bias(OfBits(3.5), error_feedback=True)
    with pytest.warns(UserWarning, match=r"OfBits is biased and keeps 3\.5 bits an element"):
        warn_of_bias(OfBits(3.5), error_feedback=False)
