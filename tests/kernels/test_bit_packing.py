import numpy as np
import pytest
import torch

from kernels.shared import bit_packing_cpu, bit_packing_reference
from kernels.shared.bit_packing_reference import packed_bytes


def pack_by_numba(codes, bits):
    rows = codes.flatten(0, -2)
    num_bytes = packed_bytes(codes.shape[-1], bits)
    filled = np.zeros((len(rows), num_bytes * 8 // bits), np.uint8)
    filled[:, : codes.shape[-1]] = rows.numpy()
    packed = np.full((len(rows), num_bytes), 0xFF, np.uint8)
    for row in range(len(rows)):
        bit_packing_cpu.pack(filled[row], packed[row], bits)
    return torch.from_numpy(packed).view(*codes.shape[:-1], num_bytes)


def unpack_by_numba(packed, n, bits):
    rows = packed.flatten(0, -2).numpy()
    codes = np.full((len(rows), packed.shape[-1] * 8 // bits), 0xFF, np.uint8)
    for row in range(len(rows)):
        bit_packing_cpu.unpack(rows[row], codes[row], bits)
    return torch.from_numpy(codes[:, :n].copy()).view(*packed.shape[:-1], n)


FORMS = {
    "reference": (bit_packing_reference.pack, bit_packing_reference.unpack),
    "numba": (pack_by_numba, unpack_by_numba),
}
every_form = pytest.mark.parametrize(("pack", "unpack"), FORMS.values(), ids=FORMS)


@every_form
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9, 1023, 1024, 1025])
def test_codes_come_back_from_as_few_bytes_as_hold_them(pack, unpack, n, bits):
    torch.manual_seed(0)
    codes = torch.randint(2**bits, (2, 3, n), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (2, 3, packed_bytes(n, bits)) == (2, 3, -(-n * bits // 8))
    assert torch.equal(packed, bit_packing_reference.pack(codes, bits))
    assert torch.equal(unpack(packed, n, bits), codes)


@every_form
def test_the_first_code_stands_in_the_lowest_bits(pack, unpack):
    def packed(codes, bits):
        return pack(torch.tensor([codes], dtype=torch.uint8), bits)[0].tolist()

    assert packed([1, 0, 0, 0, 0, 0, 0, 1, 1], 1) == [0x81, 0x01]
    assert packed([3, 0, 2], 2) == [0b100011]
    assert packed([0xA, 0xB, 0xC], 4) == [0xBA, 0x0C]
