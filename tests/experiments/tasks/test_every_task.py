"""What holds for every task. A new one needs a row in `rows.py`, and a YAML."""

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.plan.messages import choices
from experiments.tasks import word_pieces
from experiments.tasks.base import Task
from host.conf import PACKAGED
from host.errors import UserError
from tests.experiments.tasks.rows import ROWS

OF_OWN_DATA = (
    *("cifar10", "cifar100", "dataset", "glue", "image_folder", "imagenet", "own"),
    *("speech_commands", "squad", "text"),
)
"""Tested in `own`."""

WITH_ITS_OWN_TEST = ("movie_states",)
"""In `test_sequences.py`, by few examples: all of them take minutes."""

NOT_THERE = ("could not be had", "dataset-fashion-mnist", word_pieces.INSTALL)


def make(name: str) -> Task:
    return instantiate(OmegaConf.load(PACKAGED / "task" / f"{name}.yaml"))


def test_every_task_has_a_row_and_a_yaml():
    assert sorted([*ROWS, *OF_OWN_DATA, *WITH_ITS_OWN_TEST]) == choices("task")


@pytest.mark.parametrize("name", ROWS)
def test_its_data_are_as_the_protocol_says(name):
    task = make(name)
    try:
        data = task.load()
    except UserError as error:
        if not any(words in str(error) for words in NOT_THERE):
            raise
        pytest.skip(str(error))
    splits = (data.train, data.validation, data.test)
    assert tuple(map(len, splits)) == ROWS[name]
    for split in splits:
        assert len(split.x) == len(split)
        assert split.y.dtype == np.int64
        assert split.y.min() >= 0 and split.y.max() < task.num_classes
        assert split.x.flags.writeable and split.y.flags.writeable  # else torch.from_numpy warns
    x = torch.from_numpy(data.test.x[:6])
    together, apart = task.inputs(x.unflatten(0, (2, 3))), task.inputs(x)
    assert torch.equal(together.flatten(0, 1), apart)
