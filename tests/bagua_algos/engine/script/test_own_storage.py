"""Parameters in flat tensors, as a compiler sees them. No GPU is here: tensors on the CPU say that
they are on one.
"""

import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given
from torch import nn

from bagua_algos.engine.script.own_storage import move_into, with_aligned_storage, with_own_storage
from tests.bagua_algos.engine.test_bucket import SHAPES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(shapes=SHAPES)
def test_what_an_offset_says_of_alignment_is_true_in_storages_for_gpus(dtype, shapes):
    """By the offset alone, inductor decides where a kernel reads vectors."""
    flat = torch.arange(3000).to(dtype)
    start = 0
    for shape in shapes:
        view = flat[start : start + torch.Size(shape).numel()].view(shape)
        for lying in (view, view.movedim(0, -1) if view.dim() else view):
            own = with_aligned_storage(lying)
            assert own.data_ptr() == lying.data_ptr()
            assert (own.shape, own.stride()) == (lying.shape, lying.stride())
            assert torch.equal(own, lying)
            storage = own.untyped_storage()
            assert storage.data_ptr() % 16 == 0
            assert storage.nbytes() < (own.numel() * own.element_size() or 1) + 16
        start += view.numel()


class ViewOnGpu(torch.Tensor):
    @property
    def is_cuda(self):
        return True


@pytest.mark.parametrize("start", [0, 1, 4, 7])
@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_a_storage_holds_a_neighbour_only_where_a_gpu_has_it_aligned(start, is_on_gpu):
    """So that a file with one parameter has no other."""
    flat = torch.arange(20.0)
    assert flat.data_ptr() % 16 == 0
    view = flat[start : start + 5]
    own = with_own_storage(view.as_subclass(ViewOnGpu) if is_on_gpu else view)
    assert torch.equal(own, view) and own.data_ptr() == view.data_ptr()
    num_neighbours = start % 4 if is_on_gpu else 0
    assert own.storage_offset() == num_neighbours
    assert own.untyped_storage().nbytes() == 4 * (num_neighbours + 5)


INDUCTOR = "torch._inductor.compile_fx"


class OnGpu(nn.Parameter):
    @property
    def is_cuda(self):
        return True


@pytest.mark.parametrize(
    ("start", "is_worse"), [(0, False), (4, False), (8, False), (1, True), (6, True)]
)
def test_kernels_compiled_for_aligned_memory_are_forgotten_where_it_is_no_longer(
    start, is_worse, monkeypatch
):
    calls = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: calls.append("reset"))
    parameter = OnGpu(torch.arange(5.0))
    assert parameter.data_ptr() % 16 == 0
    view = torch.zeros(20)[start : start + 5].copy_(parameter.detach())
    monkeypatch.setitem(sys.modules, INDUCTOR, ModuleType("what has compiled"))
    move_into(parameter, view)
    assert calls == ["reset"] * is_worse
    assert parameter.data_ptr() == view.data_ptr()
    calls.clear()
    move_into(parameter, torch.zeros(20)[1:6])  # nothing was compiled for it where it is odd
    assert calls == ["reset"] * (not is_worse)


def test_no_compiler_is_loaded_where_none_has_compiled(monkeypatch):
    """A reset imports inductor, which takes seconds, and warns of what it imports."""
    monkeypatch.setattr(torch.compiler, "reset", lambda: pytest.fail("reset"))
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("loaded by any optimizer"))
    monkeypatch.delitem(sys.modules, INDUCTOR, raising=False)
    move_into(OnGpu(torch.arange(5.0)), torch.zeros(20)[1:6])
