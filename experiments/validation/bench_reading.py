"""How fast examples are read: `python -m experiments.bench_systems reading`.

The same digits as arrays in memory, and as a Dataset whose examples are made one by one, by the
process that trains and by others, in turn. Then runs of 4 real workers of the CNN: which part of
their time they wait for examples.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.plan.compose import compose_config
from experiments.runs.run import run
from experiments.runs.summary import read_summary
from experiments.tasks.base import Split
from experiments.tasks.loading.reading import Loaders, Reading, Request
from experiments.tasks.mnist5k import MNIST5k
from experiments.tasks.own.splits import DatasetSplit

NUM_BATCHES = 50
BATCH = 32
ARRAYS = "arrays in memory"
READERS = {
    ARRAYS: 0,
    "a Dataset": 0,
    "a Dataset, data.loaders=1": 1,
    "a Dataset, data.loaders=2": 2,
}
"""What is read, and by how many other processes."""

OF_DATASET = [
    "task=dataset",
    *(
        f"task.{part}._target_=experiments.validation.bench_reading.Digits"
        for part in ("train", "validation")
    ),
]
RUNS = {
    ARRAYS: [],
    "a Dataset": OF_DATASET,
    "a Dataset, data.loaders=1": [*OF_DATASET, "data.loaders=1"],
}


class Digits(Dataset[Any]):
    """The training images of mnist5k, float32 [1, 28, 28], made one by one."""

    def __init__(self) -> None:
        task = MNIST5k()
        split = task.load().train
        self._x = task.inputs(torch.from_numpy(split.x))
        self.targets = split.y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image and its digit."""
        return self._x[index], int(self.targets[index])


def splits() -> dict[str, Split]:
    """What each reader reads."""
    digits = DatasetSplit(Digits())
    return {name: MNIST5k().load().train if name == ARRAYS else digits for name in READERS}


def examples_per_s(split: Split, loaders: int) -> float:
    """Of a reader that nobody else needs."""
    chance = np.random.default_rng(0)
    batches = chance.integers(len(split), size=(NUM_BATCHES + 1, 1, BATCH))
    requests = [Request(indices_wb) for indices_wb in batches]
    reading = Reading(split, 0, Loaders(number=loaders))
    reading.expect(requests)
    try:
        reading.batch(requests[0])  # when it has come, the processes have started
        started_s = time.perf_counter()
        for request in requests[1:]:
            reading.batch(request)
        return NUM_BATCHES * BATCH / (time.perf_counter() - started_s)
    finally:
        reading.close()


def waiting_share(words: Sequence[str], steps: int) -> float:
    """The percentage of a run's training time for which its workers waited for examples."""
    fixed = ["algo=allreduce", "net=none", "workers=4", f"max_steps={steps}", f"eval_every={steps}"]
    with tempfile.TemporaryDirectory() as folder:
        run(compose_config([*fixed, *words]), Path(folder) / "run")
        summary = read_summary(Path(folder) / "run")
    if summary.data_wait_s is None or not summary.steps or not summary.steps_per_s:
        raise SystemExit(f"a run of {' '.join(fixed)} has failed: {summary.reason}")
    return 100 * summary.data_wait_s * summary.steps_per_s / summary.steps
