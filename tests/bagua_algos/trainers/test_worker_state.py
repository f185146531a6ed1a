"""A worker's part of a checkpoint: its file, and the model that takes it up, which it fits, or
changes nothing of.
"""

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import Algorithm, AllReduce, ByteGrad, LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.trainers.worker_state import (
    load_own_file,
    load_worker_state,
    save_own_file,
    worker_state,
)
from tests.hostile import Hostile


def distributed(sizes: tuple[int, int], *, frozen: bool = False):
    torch.manual_seed(sum(sizes) + frozen)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model.register_buffer("seen", torch.rand(sizes))
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.AdamW(model.parameters())
    bagua_algos.distribute(model, optimizer, LocalSGD(), StackedCommunicator(1))
    return model, optimizer


@pytest.mark.parametrize(
    ("saved", "loaded", "sentence"),
    [
        ({"frozen": True}, {}, r"has nothing for '0.weight', of which the model trains \[3, 3\]"),
        ({}, {"frozen": True}, r"has \[3, 3\] for '0.weight', of which the model trains nothing"),
        ({"sizes": (1, 2)}, {}, r"has \[1, 2\] for 'seen', of which the model trains \[4, 2\]"),
    ],
)
def test_a_part_of_another_model_is_refused_before_anything_is_changed(saved, loaded, sentence):
    own_state = worker_state(*distributed(**{"sizes": (4, 2)} | saved))
    model, optimizer = distributed(**{"sizes": (4, 2)} | loaded)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"the checkpoint {sentence}: resume with the same"):
        load_worker_state(model, optimizer, own_state)
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())


DAMAGED = "no worker's part of a checkpoint, or is damaged: take another .*; begin anew"


def load(folder):
    return load_as(0, folder, LocalSGD())


def test_a_part_goes_into_a_folder_that_is_made_for_it(tmp_path):
    folder = tmp_path / "checkpoints" / "checkpoint-3"
    for step in 3, 4:  # also into one that is there
        save_own_file(folder, 0, {"step": step, "weights": torch.ones(2)})
        part = load(folder)
        assert part["step"] == step and part["weights"].equal(torch.ones(2))


def test_a_hostile_part_is_refused_and_runs_nothing(tmp_path):
    """A checkpoint may be a stranger's, such as one of a public hub."""
    save_own_file(tmp_path, 0, {"step": Hostile(tmp_path / "mark")})
    with pytest.raises(ValueError, match=DAMAGED):
        load(tmp_path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("left", [0, 4, 0.5])
def test_a_part_that_is_torn_is_refused(tmp_path, left):
    save_own_file(tmp_path, 0, {"step": 3, "weights": torch.ones(200)})
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: left if left >= 1 else int(left * len(content))])
    with pytest.raises(ValueError, match=DAMAGED):
        load(tmp_path)


def test_a_part_of_which_a_byte_is_another_one_is_refused(tmp_path):
    weights = torch.full((200,), 0.7)
    save_own_file(tmp_path, 0, {"step": 3, "weights": weights})
    [file] = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[content.index(weights.numpy().tobytes()) + 402] ^= 1
    file.write_bytes(content)
    assert not torch.load(file)["weights"].equal(weights)  # torch does not look
    with pytest.raises(ValueError, match=DAMAGED):
        load(tmp_path)


def part(*, num_workers: int, state: object = None) -> dict[str, object]:
    """Of one of `num_workers`, with what the algorithm keeps."""
    return {"algorithm": {"state": state, "of": {"number of workers": num_workers}}}


def load_as(rank: int, folder, algorithm: Algorithm):
    return load_own_file(folder, rank, torch.device("cpu"), algorithm, otherwise="begin anew")


@pytest.mark.parametrize("rank", [2, 3])
def test_a_worker_more_goes_on_with_worker_0s_part(tmp_path, rank):
    for saved in (0, 1):
        save_own_file(tmp_path, saved, {**part(num_workers=2), "weights": torch.tensor(saved)})
    assert load_as(rank, tmp_path, AllReduce())["weights"] == 0
    assert load_as(1, tmp_path, AllReduce())["weights"] == 1


@pytest.mark.parametrize(
    ("rank", "state", "algorithm"),
    [
        (1, None, AllReduce()),
        (2, None, LocalSGD()),
        (2, [torch.ones(2)], ByteGrad(error_feedback=True)),
    ],
    ids=["its own is lost", "workers differ", "tensors are kept"],
)
def test_nobody_else_does(tmp_path, rank, state, algorithm):
    save_own_file(tmp_path, 0, part(num_workers=2, state=state))
    with pytest.raises(ValueError, match=rf"^there is no .*worker_{rank}.pt: .*; begin anew$"):
        load_as(rank, tmp_path, algorithm)
