import pytest
import torch

from kernels.bit_packing_reference import pack, packed_bytes, unpack


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9, 1023, 1024, 1025])
def test_codes_come_back_from_as_few_bytes_as_hold_them(n, bits):
    torch.manual_seed(0)
    codes = torch.randint(2**bits, (2, 3, n), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (2, 3, packed_bytes(n, bits)) == (2, 3, -(-n * bits // 8))
    assert torch.equal(unpack(packed, n, bits), codes)


def test_the_first_code_stands_in_the_lowest_bits():
    def packed(codes, bits):
        return pack(torch.tensor(codes, dtype=torch.uint8), bits).tolist()

    assert packed([1, 0, 0, 0, 0, 0, 0, 1, 1], 1) == [0x81, 0x01]
    assert packed([3, 0, 2], 2) == [0b100011]
    assert packed([0xA, 0xB, 0xC], 4) == [0xBA, 0x0C]
