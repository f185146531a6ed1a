from contextlib import nullcontext
from functools import partial

import pytest
import torch

from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from experiments.predict.memory_traffic import (
    CodeShapes,
    MemoryTraffic,
    NothingInPlace,
    fused_step_bytes,
)

N = 1000
CASES = {
    "add": (lambda x, y: x + y, 3),
    "in place": (lambda x, y: x.add_(y), 3),
    "scaled": (lambda x, y: x.mul_(2), 2),
    "copy": (lambda x, y: x.copy_(y), 2),
    "fill": (lambda x, y: x.zero_(), 1),
    "new zeros": (lambda x, y: torch.zeros_like(x), 1),
    "not filled": (lambda x, y: torch.empty_like(x), 0),
    "a view": (lambda x, y: x.view(10, -1).mT[3:], 0),
    "by out": (lambda x, y: torch.add(x, y, out=torch.empty_like(x)), 3),
    "repeated": (lambda x, y: x.mul_(y[:1].expand(N)), 2 + 1),
    "a list": (lambda x, y: torch.ops.aten._foreach_mul_.Scalar([x, y], 2.0), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operation_reads_its_inputs_and_writes_its_outputs_once(name):
    act, num_vectors = CASES[name]
    x, y = (torch.empty(N, device="meta") for _ in range(2))
    with (traffic := MemoryTraffic()):
        act(x, y)
    assert traffic.num_bytes == 4 * N * num_vectors


def test_a_real_tensor_moves_as_much_as_one_without_numbers():
    def moved(device):
        x = torch.ones(20, 50, device=device)
        with (traffic := MemoryTraffic()):
            (x @ x.mT).softmax(-1).clamp_(max=1.0).sum(0)
        return traffic.num_bytes

    assert moved("cpu") == moved("meta") > 0


def test_a_stand_in_has_the_shapes_of_its_compressor():
    traffic, real = MemoryTraffic(), MinMaxUInt8()
    codes = CodeShapes(real, traffic)
    numbers = torch.rand(3, 4, 96)
    payload = codes.compress(numbers.to("meta"))
    decoded = codes.decompress(payload, 96)
    assert payload.shape == real.compress(numbers).shape
    assert (decoded.shape, decoded.dtype) == (numbers.shape, numbers.dtype)
    assert traffic.num_bytes == 3 * numbers.nbytes + 2 * payload.nbytes
    assert codes.unbiased == real.unbiased


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.optim.SGD, 3),
        (partial(torch.optim.SGD, momentum=0.9), 5),
        (torch.optim.AdamW, 7),
    ],
)
def test_a_fused_optimizer_reads_and_writes_its_state(make, words):
    used, unused = (torch.nn.Parameter(torch.empty(N, device="meta")) for _ in range(2))
    used.grad = torch.empty_like(used)
    optimizer = make([used, unused], lr=0.1)
    optimizer.step()
    assert fused_step_bytes(optimizer) == 4 * N * words


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adamax", "SGD"])
def test_where_nothing_is_done_in_place_an_optimizer_has_its_state_all_the_same(name):
    def stepped(context):
        weights = torch.nn.Parameter(torch.empty(3, 4, device="meta"))
        weights.grad = torch.empty_like(weights)
        optimizer = getattr(torch.optim, name)([weights], lr=0.1)
        with context:
            optimizer.step()
        state = optimizer.state[weights].items()
        return {key: (x.shape, x.device) for key, x in state if x is not None}

    assert stepped(NothingInPlace()) == stepped(nullcontext())
