"""What holds for all trainers, from what their two workers have returned."""

import re
from collections.abc import Sequence
from typing import Any

import torch

from bagua_algos import Algorithm
from tests.bagua_algos.trainers.plain_loop import NUM_EPOCHS, Weights, examples


def are_equal(these: Weights, those: Weights) -> bool:
    """Bit for bit."""
    return these.keys() == those.keys() and all(torch.equal(these[k], those[k]) for k in these)


def check_equals_a_loop(workers: Sequence[dict[str, Any]]) -> None:
    for worker in workers:
        assert are_equal(worker["own"], worker["loop"])


def check_resumes(workers: Sequence[dict[str, Any]]) -> None:
    for worker in workers:
        assert are_equal(worker["resumed"], worker["own"])


def check_is_the_mean(
    workers: Sequence[dict[str, Any]], names: Sequence[str], algorithm: Algorithm
) -> None:
    """The mean of the workers' own weights is what is under `names` on each of them."""
    mine, others = (worker["own"] for worker in workers)
    assert are_equal(mine, others) == algorithm.workers_agree
    mean = {key: (mine[key] + others[key]) / 2 for key in mine}
    for worker in workers:
        for name in names:
            assert are_equal(worker[name], mean), name


def check_each_is_dealt_once_an_epoch(workers: Sequence[list[list[float]]]) -> None:
    """By the balanced sampler, in another order in each epoch."""
    mine, others = workers
    every = sorted(float(example["x"][0]) for example in examples(0))
    assert all(sorted(mine[epoch] + others[epoch]) == every for epoch in range(NUM_EPOCHS))
    assert mine[0] != mine[1]


def check_is_refused(workers: Sequence[dict[str, str]], what: str, sentence: str) -> None:
    for worker in workers:
        assert re.search(sentence, worker[what]), worker[what]
        assert "\n" not in worker[what]
