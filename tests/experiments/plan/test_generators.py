import random

import numpy as np
import pytest
import torch

from experiments.plan import generators


def drawn():
    return torch.rand(()).item(), np.random.random(), random.random()


@pytest.fixture(autouse=True)
def left_as_they_were():
    before = generators.state_dict("cpu")
    yield
    generators.load_state_dict(before, "cpu")


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 7])
def test_a_seed_begins_each_generator(seed):
    generators.begin(seed)
    of_torch = torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
    of_numpy = np.random.RandomState(seed % 2**32).random_sample()
    assert drawn() == (of_torch, of_numpy, random.Random(seed).random())


def test_a_file_has_where_each_generator_is(tmp_path):
    generators.begin(3)
    _ = random.gauss(0, 1), np.random.normal()  # each makes two numbers, and keeps the second one
    torch.save(generators.state_dict("cpu"), tmp_path / "state.pt")
    first = [drawn(), random.gauss(0, 1), np.random.normal()]
    generators.begin(4)
    generators.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), "cpu")
    assert [drawn(), random.gauss(0, 1), np.random.normal()] == first


def test_an_older_checkpoint_tells_of_torchs_alone():
    generators.begin(3)
    state = {"generators": [torch.default_generator.get_state()]}
    of_torch, _, _ = drawn()
    generators.begin(4)
    _, of_numpy, of_python = drawn()
    generators.begin(4)
    generators.load_state_dict(state, "cpu")
    assert drawn() == (of_torch, of_numpy, of_python)
