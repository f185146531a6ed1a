"""The public functions of SignScale, QSGD and fp8: shapes, views, `out`, errors, loading, threads.

Those of MinMaxUInt8 have a suite of their own.
"""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from kernels import fp8, minmax_uint8, qsgd, sign_scale

STREAMS = torch.tensor([[0, 0, rank] for rank in range(3)])
CODE = {"bits": 4, "group_size": 48}
WIRE = {"wire": "fp8_e4m3"}
CODECS = {
    "minmax_uint8": (minmax_uint8, minmax_uint8.compress, {}),
    "sign_scale": (sign_scale, sign_scale.compress, {}),
    "qsgd": (qsgd, partial(qsgd.compress, streams=STREAMS, key=(1, 2), **CODE), CODE),
    "fp8": (fp8, partial(fp8.compress, **WIRE), WIRE),
}
every_codec = pytest.mark.parametrize(
    ("codec", "compress", "settings"), CODECS.values(), ids=CODECS
)


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@every_codec
@pytest.mark.parametrize("n", [0, 1, 13, 100])
def test_shapes_and_out(codec, compress, settings, n):
    x = numbers(3, 2, n)
    payload = compress(x)
    num_bytes = codec.wire_bytes(n, **(settings if codec is qsgd else {}))
    assert payload.shape == (3, 2, num_bytes)
    out = torch.full_like(payload, 0xFF)
    assert compress(x, out=out) is out
    assert torch.equal(out, payload)
    for decode, shape in ((codec.decompress, (3, 2, n)), (codec.decompress_mean, (3, n))):
        decoded = decode(payload, n, **settings)
        assert (decoded.shape, decoded.dtype) == (shape, torch.float32)
        y = torch.full(shape, torch.nan)
        assert decode(payload, n, **settings, out=y) is y
        assert torch.equal(y, decoded)


@pytest.mark.parametrize("shape", [(3, 0), (0, 8), (1,), (1, 1), (3, 2, 13)])
def test_what_sign_scale_loses_stays_in_the_residual(shape):
    x, residual = numbers(*shape), torch.zeros(shape)
    payload = sign_scale.compress_with_feedback(x, residual)
    assert torch.equal(payload, sign_scale.compress(x))
    assert torch.equal(residual, x - sign_scale.decompress(payload, shape[-1]))


@every_codec
def test_no_chunks(codec, compress, settings):
    payload = compress(numbers(3, 0, 8))
    assert codec.decompress(payload, 8, **settings).shape == (3, 0, 8)


@every_codec
@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda x: x.transpose(1, 2), id="transposed"),
        pytest.param(lambda x: x[:, 1:, 1:-1], id="sliced"),
        pytest.param(lambda x: x[..., ::3], id="strided"),
        pytest.param(lambda x: x[:1].expand(3, -1, -1), id="expanded"),
    ],
)
def test_views_and_odd_addresses(codec, compress, settings, view):
    x = view(numbers(3, 5, 16))
    n, payload = x.shape[-1], compress(x)
    assert torch.equal(payload, compress(x.contiguous()))
    buffer = torch.empty(payload.numel() + 1, dtype=torch.uint8)
    odd = buffer[1:].view_as(payload)
    compress(x, out=odd)
    assert torch.equal(odd, payload)
    decoded = codec.decompress(payload, n, **settings)
    assert torch.equal(codec.decompress(odd, n, **settings), decoded)
    swapped = payload.transpose(0, 1)
    assert torch.equal(codec.decompress(swapped, n, **settings), decoded.transpose(0, 1))
    mean = codec.decompress_mean(payload, n, **settings)
    assert torch.equal(codec.decompress_mean(odd, n, **settings), mean)


@every_codec
def test_what_does_not_fit_is_refused(codec, compress, settings):
    x = numbers(3, 2, 8)
    payload = compress(x)
    with pytest.raises(ValueError, match=r"not torch\.float64; convert it"):
        compress(x.double())
    with pytest.raises(ValueError, match=r"out must be a contiguous torch\.uint8"):
        compress(x, out=payload[:2])
    with pytest.raises(ValueError, match=r"n is the number .* cannot be -1"):
        codec.decompress(payload, -1, **settings)
    with pytest.raises(ValueError, match=r"800 elements has a payload of \[..., \d+\] bytes"):
        codec.decompress(payload, 800, **settings)
    with pytest.raises(ValueError, match=r"8 elements has a payload of \[..., N, \d+\] bytes"):
        codec.decompress_mean(payload[0, 0], 8, **settings)
    with pytest.raises(ValueError, match=r"payload is uint8, not torch\.float32"):
        codec.decompress(payload.float(), 8, **settings)
    with pytest.raises(ValueError, match="the mean of no payloads"):
        codec.decompress_mean(payload[:, :0], 8, **settings)
    with pytest.raises(ValueError, match=r"out must be a contiguous torch.float32 .* \[3, 2, 8\]"):
        codec.decompress(payload, 8, **settings, out=x[:2])


def test_settings_that_cannot_be_are_refused():
    x = numbers(3, 8)
    for bits in (3, 9):
        with pytest.raises(ValueError, match=f"bits must be 2, 4 or 8, got {bits}"):
            qsgd.compress(x, STREAMS, (0, 0), bits=bits, group_size=4)
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        qsgd.compress(x, STREAMS, (0, 0), bits=2, group_size=0)
    with pytest.raises(ValueError, match=r"streams int64 \[w, 3\], got \[2, 8\]"):
        qsgd.compress(x[:2], STREAMS, (0, 0), **CODE)
    with pytest.raises(ValueError, match=r"key must be two .* got \(0, 4294967296\)"):
        qsgd.compress(x, STREAMS, (0, 2**32), **CODE)
    assert qsgd.compress(x, STREAMS, (0, 2**32 - 1), **CODE).shape[0] == 3
    with pytest.raises(ValueError, match="wire must be one of fp8_e4m3, fp8_e5m2, got 'fp4'"):
        fp8.compress(x, "fp4")
    payload = fp8.compress(x, "fp8_e5m2")
    for decode, payloads in ((fp8.decompress, payload), (fp8.decompress_mean, payload[:, None])):
        with pytest.raises(ValueError, match=r"wire must be one of .*, got 'fp4'"):
            decode(payloads, 8, "fp4")
    with pytest.raises(ValueError, match=r"residual must be a contiguous torch.float32 .*\[3, 8\]"):
        sign_scale.compress_with_feedback(x, torch.zeros(3, 7))
    with pytest.raises(ValueError, match=r"not torch\.float64; convert it"):
        sign_scale.compress_with_feedback(x.double(), torch.zeros(3, 8))


def test_average_is_the_code_of_the_mean():
    payload = minmax_uint8.compress(numbers(5, 3, 20))
    ours = minmax_uint8.average(payload, 20)
    assert torch.equal(ours, minmax_uint8.compress(minmax_uint8.decompress_mean(payload, 20)))
    out = torch.full_like(ours, 0xFF)
    assert minmax_uint8.average(payload, 20, out=out) is out
    assert torch.equal(out, ours)
    assert minmax_uint8.average(payload[:, :, :8], 0).eq(0).all()
    with pytest.raises(ValueError, match=r"20 elements has a payload of \[..., N, 32\] bytes"):
        minmax_uint8.average(payload[..., :24], 20)


@pytest.fixture
def threads():
    """Sets their number, for a while."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_codec
def test_the_number_of_threads_changes_nothing(threads, codec, compress, settings):
    x, found = numbers(3, 1 << 18), []
    for number in (1, 2, 3):
        threads(number)
        found.append(compress(x))
        found.append(codec.decompress_mean(found[-1][:, None], 1 << 18, **settings))
    assert all(map(torch.equal, found[:2] * 2, found[2:]))


THREADS_AND_FORK = """
import os, sys, torch
from kernels import fp8, minmax_uint8, qsgd, sign_scale
assert "numba" not in sys.modules
for codec in (fp8, minmax_uint8, qsgd, sign_scale):
    codec.load("cpu")
torch.set_num_threads(1)  # torch's own threads do not survive a fork
x = torch.arange(2**20).float()
torch.set_num_threads(3)
before = minmax_uint8.compress(x).numpy().tobytes()  # on three threads, of which a child has none
child = os.fork()
assert minmax_uint8.compress(x).numpy().tobytes() == before
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_threads_are_made_anew_after_a_fork():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", THREADS_AND_FORK]
    subprocess.run(command, env=os.environ, check=True, timeout=120)
