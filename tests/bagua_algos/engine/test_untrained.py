"""Buffers and frozen parameters of workers that differ in them."""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bagua_algos import AllReduce, Decentralized, LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.untrained import (
    broadcast_tensors_,
    broadcast_untrained_,
    make_alike_,
    that_differ,
)
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.recorder import Recorder

NUM_WORKERS = 3
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def model_of(**rows: torch.Tensor) -> nn.Module:
    """With these buffers, one row a worker; a frozen and a trained parameter of their ranks."""
    model = nn.Module()
    for name, x_w in rows.items():
        model.register_buffer(name, x_w)
    ranks_w = torch.arange(float(NUM_WORKERS))[:, None]
    model.frozen = nn.Parameter(ranks_w.clone() + 5, requires_grad=False)
    model.trained = nn.Parameter(ranks_w.clone())
    return model


@pytest.fixture
def model() -> nn.Module:
    ranks_w = torch.arange(NUM_WORKERS)
    return model_of(
        means=ranks_w[:, None, None] * torch.tensor([[1.0, 10.0], [100.0, 1000.0]]),
        fine=ranks_w[:, None].double() + 1e-12,
        narrow=torch.tensor([[2048.0], [1.0], [1.0]], dtype=torch.float16),
        turned=(ranks_w * 1j).to(torch.complex64),
        counts=ranks_w + 7,
        masks=ranks_w[:, None].eq(torch.tensor([0, 1])),
    )


def test_numbers_are_averaged_and_all_else_is_worker_0s(model):
    recorder = Recorder()
    make_alike_(list(model.buffers()), StackedCommunicator(NUM_WORKERS, recorder))
    for x_n in model.means:
        torch.testing.assert_close(x_n, torch.tensor([[1.0, 10.0], [100.0, 1000.0]]))
    assert model.fine.dtype == torch.float64 and model.fine.sub(1 + 1e-12).abs().max() < 1e-14
    # In float16 2048 + 1 would be 2048, and the mean 682.5.
    assert model.narrow.dtype == torch.float16 and model.narrow.eq(683.5).all()
    assert model.turned.eq(1j).all()
    assert model.counts.eq(7).all()
    assert torch.equal(model.masks, torch.tensor([[True, False]] * NUM_WORKERS))
    assert model.frozen[:, 0].tolist() == [5, 6, 7]
    compared = ["broadcast", "all_reduce_mean"]
    assert [name for name, _ in recorder.messages] == [*compared, "all_reduce_mean", "broadcast"]


def test_numbers_that_are_alike_keep_their_bits():
    """A sum of the lowest numbers is infinite, and a third of a sum of three is off by a bit."""
    lowest = {d: torch.full((NUM_WORKERS, 2), torch.finfo(d).min, dtype=d) for d in FLOATS}
    odd = torch.rand(1000, generator=torch.Generator().manual_seed(1)).repeat(NUM_WORKERS, 1)
    assert not torch.equal(odd.sum(0).div(NUM_WORKERS), odd[0])
    constant = {"odd": odd, "not a number": torch.full((NUM_WORKERS, 2), torch.nan)}
    constant |= {f"lowest {dtype.itemsize} {n}": x for n, (dtype, x) in enumerate(lowest.items())}
    model = model_of(**{name: x.clone() for name, x in constant.items()})
    make_alike_(list(model.buffers()), StackedCommunicator(NUM_WORKERS))
    found = dict(model.named_buffers())
    for name, x in constant.items():
        assert torch.equal(found[name].view(torch.uint8), x.view(torch.uint8)), name


@pytest.mark.parametrize(
    "row",
    [
        torch.arange(3.0),
        torch.tensor([0.0, 0, 1, 0, 0, -1]),
        torch.tensor([1e30, -1e30, 2, 1]),
        torch.arange(3e5),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_numbers_at_other_places_are_not_alike(row, dtype):
    row = row.to(dtype)
    x_w = torch.stack([row, row.roll(1), row.flip(0)])
    expected = x_w.double().mean(0).to(dtype)
    make_alike_([x_w], StackedCommunicator(NUM_WORKERS))
    for x in x_w:
        torch.testing.assert_close(x, expected)


@pytest.mark.parametrize(
    "of",
    [
        lambda ranks_w: (ranks_w * 1j).to(torch.complex64).conj(),
        lambda ranks_w: torch.complex(ranks_w, ranks_w).conj().imag,
        lambda ranks_w: ranks_w.to(torch.float8_e4m3fn),
    ],
)
def test_numbers_that_torch_keeps_in_another_way_are_averaged(of):
    x_w, first_w = (of(torch.arange(float(NUM_WORKERS))[:, None] + 1) for _ in range(2))
    make_alike_([x_w], StackedCommunicator(NUM_WORKERS))
    broadcast_tensors_([first_w], StackedCommunicator(NUM_WORKERS))
    expected, first = (of(torch.tensor([[value]])).to(torch.complex64) for value in (2.0, 1.0))
    assert all(torch.equal(x, expected[0]) for x in x_w.to(torch.complex64))
    assert all(torch.equal(x, first[0]) for x in first_w.to(torch.complex64))


def test_buffers_that_a_script_has_made_in_inference_mode_are_written_to():
    """As one that a model caches in an evaluation."""
    with torch.inference_mode():
        ranks_w = torch.arange(NUM_WORKERS)[:, None] + 1
        model = model_of(means=ranks_w.float(), counts=ranks_w, turned=(ranks_w * 1j).conj())
    make_alike_(list(model.buffers()), StackedCommunicator(NUM_WORKERS))
    assert model.means.eq(2).all() and model.counts.eq(1).all() and model.turned.eq(-2j).all()


def test_buffers_that_a_script_has_replaced_are_looked_at_by_the_consensus():
    model = nn.Linear(2, 2)
    model.register_buffer("x", torch.zeros(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    for x, said in (
        (torch.zeros(3).expand(3, 3), r"^'x' has elements that share their memory"),
        (torch.eye(3).to_sparse(), r"^'x' is sparse_coo.* attribute that is no buffer"),
    ):
        model.x = x
        with pytest.raises(ValueError, match=said), engine.consensus():
            pass
    engine.close()


def test_at_the_start_everything_that_does_not_train_is_worker_0s(model):
    recorder = Recorder()
    broadcast_untrained_(model, StackedCommunicator(NUM_WORKERS, recorder))
    for name, x_w in model.named_buffers():
        assert torch.equal(x_w, x_w[:1].expand_as(x_w)), name
    assert model.means.eq(0).all() and model.fine.eq(1e-12).all() and model.counts.eq(7).all()
    assert model.frozen.eq(5).all()
    assert model.trained[:, 0].tolist() == [0, 1, 2]
    # One message of bytes: 4 floats, a double, a float16, a complex, an integer, 2 truths, 1 float.
    assert recorder.messages == [("broadcast", 16 + 8 + 2 + 8 + 8 + 2 + 4)]


def test_without_any_nothing_is_sent():
    recorder = Recorder()
    workers = StackedCommunicator(NUM_WORKERS, recorder)
    plain = nn.Linear(1, 1)
    make_alike_(list(plain.buffers()), workers)
    broadcast_untrained_(plain, workers)
    assert recorder.messages == []


def test_frozen_numbers_that_differ_are_averaged_and_whole_ones_are_worker_0s():
    recorder, ranks_w = Recorder(), torch.arange(float(NUM_WORKERS))
    storage, other = torch.zeros(NUM_WORKERS * 2 + 1), torch.zeros(NUM_WORKERS * 2 + 9)
    frozen = {
        "alike": torch.ones(NUM_WORKERS, 5),
        "differing": ranks_w[:, None] + torch.tensor([0.0, 0.5, 7.0]),
        "half": ranks_w[:, None].half() * torch.ones(3).half(),
        "turned": (ranks_w * 1j).to(torch.complex64),
        "counts": torch.arange(NUM_WORKERS) + 4,
        "none": torch.ones(NUM_WORKERS, 0),
        "at an odd place": storage[1:].view(NUM_WORKERS, 2),
        "at another": other[9:].view(NUM_WORKERS, 2),
    }
    frozen["at an odd place"][1] = 3.0
    frozen["at another"][2] = 6.0
    make_alike_(list(frozen.values()), StackedCommunicator(NUM_WORKERS, recorder))
    assert frozen["alike"].eq(1).all() and frozen["counts"].tolist() == [4, 4, 4]
    for row in frozen["differing"]:
        assert row.tolist() == [1.0, 1.5, 8.0]
    assert frozen["half"].eq(1).all() and frozen["turned"].eq(1j).all()
    assert frozen["at an odd place"].eq(1).all() and frozen["at another"].eq(2).all()
    # 7 checksums of 8 bytes, as many shares, 3 + 3 + 2 + 2 + 2 numbers, and a count.
    assert recorder.messages == [
        ("broadcast", 7 * 8),
        ("all_reduce_mean", 7 * 4),
        ("all_reduce_mean", 12 * 4),
        ("broadcast", 8),
    ]


@pytest.mark.parametrize("num_workers", [1, NUM_WORKERS])
def test_frozen_numbers_that_are_alike_are_not_sent(num_workers):
    recorder = Recorder()
    frozen = [torch.ones(num_workers, 5)]
    make_alike_(frozen, StackedCommunicator(num_workers, recorder))
    assert [num_bytes for _, num_bytes in recorder.messages] == [8, 4]


class WithTeacher(nn.Module):
    """As BYOL and DINO: a frozen part that the script moves towards the trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.student(x) - self.teacher(x)


@pytest.mark.parametrize("algorithm", [LocalSGD(interval=9), Decentralized(), AllReduce()])
def test_the_consensus_is_of_teachers_too_which_differ_where_workers_need_not_agree(algorithm):
    model = StackedModel(WithTeacher(), NUM_WORKERS)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(NUM_WORKERS))
    with warnings.catch_warnings(action="error"), engine.consensus():
        pass
    teacher = model.module.teacher.weight
    teacher.data.add_(torch.arange(float(NUM_WORKERS))[:, None, None])
    expected = teacher.mean(0, keepdim=True).expand_as(teacher)
    said = "the untrained parameter 'module.teacher.weight' differed between workers, and AllReduce"
    told = pytest.warns(UserWarning, match=said) if algorithm.workers_agree else nullcontext()
    with told, engine.consensus() as spread:
        within = teacher.clone()
    assert spread < 1e-6
    torch.testing.assert_close(within, expected)
    assert torch.equal(teacher, within)
    engine.close()


def test_all_frozen_parameters_that_differ_are_counted():
    model = StackedModel(WithTeacher(), NUM_WORKERS)
    optimizer = torch.optim.SGD(model.module.student.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(NUM_WORKERS))
    for parameter in model.module.teacher.parameters():
        parameter.data[1] += 1
    said = "'module.teacher.weight' and 1 more differed between workers"
    with pytest.warns(UserWarning, match=said), engine.consensus():
        pass
    engine.close()


def test_a_quantized_weight_that_differs_is_worker_0s_and_warned_of():
    model = StackedModel(WithTeacher(), NUM_WORKERS)
    optimizer = torch.optim.SGD(model.module.student.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(NUM_WORKERS))
    codes = torch.arange(NUM_WORKERS, dtype=torch.uint8)[:, None] + 5
    model.codes = nn.Parameter(codes, requires_grad=False)
    told = pytest.warns(UserWarning, match="'codes' differed .* worker 0's where it has whole")
    with told, engine.consensus():
        pass
    assert model.codes.eq(5).all()
    engine.close()


def test_a_layer_that_came_later_is_averaged_and_warned_of():
    model = StackedModel(nn.Linear(2, 1), NUM_WORKERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(NUM_WORKERS))
    model.later = nn.Parameter(torch.arange(float(NUM_WORKERS))[:, None])
    told = pytest.warns(UserWarning, match="the untrained parameter 'later' differed")
    with told, engine.consensus():
        pass
    assert model.later.eq(1).all()
    engine.close()


def test_a_buffer_of_another_memory_format_keeps_its_place(model):
    x_w = torch.arange(24.0).view(NUM_WORKERS, 2, 4).transpose(1, 2)
    turned = model_of(means=x_w.clone(memory_format=torch.preserve_format))
    expected = x_w.mean(0)
    make_alike_(list(turned.buffers()), StackedCommunicator(NUM_WORKERS))
    for x_n in turned.means:
        torch.testing.assert_close(x_n, expected)
    assert turned.means.stride() == x_w.stride()


def test_any_strides_of_one_element_are_good_for_worker_0s_values():
    """A frozen convolution of one pixel has others where its channels are last."""
    convolution = nn.Conv2d(4, 8, 1, bias=False).to(memory_format=torch.channels_last)
    weight = convolution.requires_grad_(False).weight
    x_w = torch.stack([weight, weight + 1, weight + 2]).as_strided(
        (3, 8, 4, 1, 1), (32, 4, 1, 4, 4)
    )
    column_w = torch.arange(6).as_strided((3, 2, 1), (2, 1, 5))
    turned_w = torch.arange(24).view(NUM_WORKERS, 2, 4).mT
    first = turned_w[0].clone()
    broadcast_tensors_([x_w, column_w, turned_w], StackedCommunicator(NUM_WORKERS))
    assert all(torch.equal(x, weight) for x in x_w) and column_w.eq(torch.tensor([[0], [1]])).all()
    assert all(torch.equal(x, first) for x in turned_w)
    model = nn.Sequential(convolution, nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    Engine(model, optimizer, AllReduce(), StackedCommunicator(1)).close()


@pytest.mark.parametrize(
    "one",
    [
        torch.linspace(3, 9, 10)[::3][:1],
        torch.arange(3.0, 15).view(3, 4)[:1, :1].T,
        torch.arange(3, 15).view(3, 4)[:, 1][:1] - 1,
    ],
)
def test_a_buffer_of_one_element_may_have_any_stride(one):
    model = nn.Linear(2, 1)
    model.register_buffer("one", one.clone().as_strided(one.shape, one.stride()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Engine(model, optimizer, AllReduce(), StackedCommunicator(1)).close()
    assert model.one.item() == 3
    alike, other = OfTwo([one.clone()]), OfTwo([one + 1])
    assert that_differ([one], alike) == []  # pyright: ignore[reportArgumentType]
    assert that_differ([one], other) == [one]  # pyright: ignore[reportArgumentType]


def test_workers_send_at_the_start_what_they_do_not_hold_alike(tmp_path_factory):
    program = "tests.bagua_algos.communication.three_workers"
    starts = [w["start"] for w in run_program_once(tmp_path_factory, program, NUM_WORKERS)]
    torch.manual_seed(0)
    last = nn.Linear(64, 2)
    expected = nn.Sequential(nn.Linear(64, 64), last, nn.BatchNorm1d(2)).state_dict()
    for start in starts:
        assert all(torch.equal(start["model"][name], x) for name, x in expected.items())
        assert start["differ"] == ["moved", "sign of zero", "truths", "complex"]
    sent = [num_bytes for name, num_bytes in starts[0]["messages"] if name == "broadcast"]
    assert sent and sum(sent) < 4 * 64 * 64  # not the first layer, which is alike


class OfTwo:
    """Worker 0 of two; the other holds other tensors of the same shapes."""

    ranks, world_size = (0,), 2

    def __init__(self, theirs: list[torch.Tensor]) -> None:
        self.theirs, self.gathered = theirs, []

    def all_gather(self, x_w: torch.Tensor) -> torch.Tensor:
        self.gathered.append(x_w[0])
        if len(self.theirs) == 0:
            return torch.stack([x_w, x_w], 1)
        other = OfTwo([])
        that_differ(self.theirs, other)  # pyright: ignore[reportArgumentType]
        return torch.stack([x_w, other.gathered[0][None]], 1)


def test_tensors_that_differ_between_workers_are_found_by_their_bits():
    ours = [torch.arange(5.0), torch.tensor([0.0]), torch.ones(2, 3), torch.arange(4)]
    theirs = [x.clone() for x in ours]
    assert that_differ(ours, OfTwo(theirs)) == []  # pyright: ignore[reportArgumentType]
    theirs[1], theirs[3] = torch.tensor([-0.0]), torch.arange(4).flip(0)
    found = that_differ(ours, OfTwo(theirs))  # pyright: ignore[reportArgumentType]
    assert [id(x) for x in found] == [id(ours[1]), id(ours[3])]


def test_one_byte_of_a_digest_is_enough_to_differ():
    """Of so many pairs, some have other bytes alike."""
    ours, theirs = [[torch.tensor([n + k]) for n in range(100)] for k in (0, 100)]
    assert len(that_differ(ours, OfTwo(theirs))) == 100  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("num_workers", [2, NUM_WORKERS])
def test_workers_of_one_process_send_everything(num_workers):
    x_w = torch.ones(num_workers, 2)
    assert that_differ([x_w], StackedCommunicator(num_workers)) == [x_w]


def test_workers_with_a_tensor_on_a_gpu_send_everything():
    """A copy takes less time there than a digest."""
    tensors, workers = [torch.ones(2), SimpleNamespace(is_cuda=True)], OfTwo([])
    assert that_differ(tensors, workers) == tensors  # pyright: ignore[reportArgumentType]
    assert workers.gathered == []


def test_an_engine_begins_with_the_buffers_of_worker_0():
    stacked = StackedModel(nn.BatchNorm1d(2), NUM_WORKERS)
    stacked.module.running_mean.copy_(torch.arange(float(NUM_WORKERS))[:, None] + 4)
    optimizer = torch.optim.SGD(stacked.parameters(), lr=0.1)
    engine = Engine(stacked, optimizer, AllReduce(), StackedCommunicator(NUM_WORKERS))
    assert stacked.module.running_mean.eq(4).all()
    engine.close()


def distribute_with(**tensors: torch.Tensor) -> None:
    """A model with these as buffers, and as a frozen parameter what is named so."""
    model = nn.Linear(2, 2)
    for name, x in tensors.items():
        if name == "frozen":
            model.frozen = nn.Parameter(x, requires_grad=False)
        else:
            model.register_buffer(name, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    with engine.consensus():
        pass
    engine.close()


@pytest.mark.filterwarnings("ignore:.*creation functions.* are deprecated:UserWarning")
@pytest.mark.parametrize("name", ["scale", "frozen"])
def test_what_cannot_be_written_to_is_refused(name):
    shared = rf"'{name}' has elements that share their memory.* give it a clone\(\)"
    for x in (torch.tensor(0.5).expand(3, 1, 1), torch.arange(3).expand(2, 3)):
        with pytest.raises(ValueError, match=shared):
            distribute_with(**{name: x})
        distribute_with(**{name: x.clone()})
    with pytest.raises(ValueError, match=rf"'{name}' is sparse_coo.* attribute that is no buffer"):
        distribute_with(**{name: torch.eye(3).to_sparse()})
    with pytest.raises(ValueError, match=r"'codes' is quantized.* codes and scales as plain"):
        distribute_with(codes=torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    alone = torch.arange(3).as_strided((1, 3), (0, 1))
    distribute_with(ids=alone, none=torch.ones(0, 1).expand(0, 3))
