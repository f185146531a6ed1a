import numpy as np
import pytest
import torch

from kernels.shared.philox_cpu import draw_words
from kernels.shared.philox_reference import philox4x32, uniforms

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # kat_vectors of Random123, the authors' own implementation
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    words = philox4x32([torch.tensor([c]) for c in counter], key)
    assert tuple(word.item() for word in words) == expected
    by_numba = np.zeros(4, np.uint32)
    draw_words(by_numba, counter[0], np.array(counter[1:]), *key)
    assert tuple(by_numba.tolist()) == expected


@pytest.mark.parametrize("first", [0, 5, 2**32 - 20, 2**33 + 1, 2**60])
def test_counters_follow_one_another(first):
    stream, key = (2, 2**32 - 1, 7), (9, 11)
    counters = torch.arange(first, first + 50)
    expected = torch.stack(philox4x32((counters, *map(torch.tensor, stream)), key), 1)
    words = np.zeros(200, np.uint32)
    draw_words(words, first, np.array(stream), *key)
    assert words.tolist() == expected.flatten().tolist()


def test_uniforms_are_uniform_and_below_one():
    u = uniforms(1_000_001, torch.tensor([[1, 2, 3]]), (4, 5))
    assert u.shape == (1, 1_000_001)
    assert u.min() >= 0
    assert u.max() < 1
    histogram = torch.histc(u, 64, 0, 1)
    chi_squared = ((histogram - histogram.mean()) ** 2 / histogram.mean()).sum()
    assert chi_squared < 120  # 63 degrees of freedom: exceeded once in 50,000 seeds


def test_a_row_depends_on_its_stream_alone():
    streams = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    together = uniforms(9, streams, (0, 0))
    for row, stream in zip(together, streams, strict=True):
        assert torch.equal(uniforms(9, stream[None], (0, 0))[0], row)
        assert torch.equal(uniforms(5, stream[None], (0, 0))[0], row[:5])
    assert together.unique().numel() == together.numel()
    for key in [(1, 0), (0, 1)]:
        assert not torch.equal(uniforms(9, streams[:1], key)[0], together[0])
