"""Which back end a group's tensors go by. A host without a GPU has gloo alone: what a group with
NCCL says of itself is made up here, and `tests/bagua_algos/scripts/test_on_one_gpu.py` asks a real
one.
"""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bagua_algos import ProcessGroupCommunicator
from bagua_algos.communication.connections import groups
from bagua_algos.communication.connections.groups import Groups, backends_of, forget_left
from bagua_algos.communication.rendezvous import file_rendezvous

WEIGHT, BUFFER = torch.zeros(2), torch.zeros(2, device="meta")


@pytest.fixture(params=["cpu:gloo", None])
def one_worker(request: pytest.FixtureRequest) -> Iterator[None]:
    """torch's default group, of this process, by a back end that is not called gloo."""
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield
    forget_left()
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_worker")
def test_duplicates_have_the_back_end_of_their_own_group() -> None:
    of_gloo = dist.new_group(backend="gloo")
    assert dist.get_backend() != dist.get_backend(of_gloo) == "gloo"
    with_group, of_default = ProcessGroupCommunicator(of_gloo), ProcessGroupCommunicator()
    for workers, backend in ((with_group, "gloo"), (of_default, dist.get_backend())):
        duplicate = workers.duplicate()
        assert dist.get_backend(duplicate.group) == backend
        assert backends_of(duplicate.group)["cpu"] == "gloo"
        duplicate.close()


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize(
    ("backends", "device", "sentence"),
    [
        ({"cpu": "gloo"}, "cuda:1", "is on cuda:1, .* by gloo: call init_process_group"),
        ({"cpu": "gloo", "cuda": "gloo"}, "cuda", "is on cuda, and .* of the CPU by gloo"),
        ({"cuda": "nccl"}, "cpu", r"on the CPU, .* of GPUs by nccl: call .*\('gloo'"),
        ({"cpu": "gloo", "cuda": "nccl"}, "cpu", "1.mean is on meta, .* tensors on cpu"),
        ({"cpu": "gloo", "cuda": "nccl"}, "cuda", "0.weight is on cpu, .* tensors on cuda"),
    ],
)
def test_a_model_whose_tensors_do_not_go_by_the_group_is_refused(
    backends: dict[str, str], device: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "backends_of", lambda group: backends)
    workers = Groups(None, None, None, torch.device(device))
    with pytest.raises(ValueError, match=sentence):
        workers.check_carries({"0.weight": WEIGHT, "1.mean": BUFFER})


@pytest.mark.usefixtures("one_worker")
def test_a_group_of_two_back_ends_connects_by_that_of_its_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reduced: list[torch.device] = []
    monkeypatch.setattr(groups, "backends_of", lambda group: {"cpu": "gloo", "cuda": "nccl"})
    monkeypatch.setattr(torch, "zeros", lambda n, dtype, device: device)
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: reduced.append(x))
    for device in ("cpu", "cuda:1"):
        groups.connect(None, torch.device(device))
    assert reduced == [torch.device("cuda:1")]


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize("parts", [[(0, 1, 2)], [(2,), (0, 1)], [(0, 1), (2,)]])
def test_those_of_a_part_use_again_what_all_of_them_have_left(
    parts: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error worker 1 has left none of worker 0's groups, or one of them; what others say
    is made up here.
    """
    workers = Groups(None, None, None)
    workers.members = (0, 1, 2)
    [own] = [part for part in parts if 0 in part]
    left = [dist.new_group(), dist.new_group()]
    of_part = Groups(None, None, None)
    of_part.members = own
    of_part.leave(left)
    names = sorted(group.group_name for group in left)

    class Others:
        """Worker 2 has left what worker 0 has; worker 1 only the last of it."""

        def __init__(self, among: object) -> None:
            pass

        def all_gather(self, own_1: torch.Tensor, all_N: torch.Tensor) -> None:
            all_N[1] += 1

    def all_gather_object(words: list[object], own_words: object, group: object) -> None:
        words[:] = [own_words, names[1:], own_words]

    monkeypatch.setattr(groups, "Stripes", Others)
    monkeypatch.setattr(dist, "all_gather_object", all_gather_object)
    monkeypatch.setattr(Groups, "_make", lambda self, members: members)
    monkeypatch.setattr(groups, "_make_up_to", lambda number: None)
    again, new = workers.take(parts, 2)
    assert again.group_name == names[1]
    assert new == own


def test_the_end_of_the_default_group_frees_those_that_were_left(tmp_path: Path) -> None:
    with file_rendezvous(
        str(tmp_path / "store"), backend="gloo", rank=0, world_size=1, timeout_s=10
    ) as workers:
        duplicate = workers.duplicate()
        left = weakref.ref(duplicate.group)
        duplicate.close()
        del duplicate
        gc.collect()
        assert left() is not None
    del workers
    gc.collect()
    assert left() is None
