"""Batches of like length: the same for real and simulated workers, and no example lost."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.models.bigru import BiGRU
from experiments.models.fast_text import FastText
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.load import load_rows
from experiments.tasks.base import Split
from experiments.tasks.batches import Batches
from experiments.tasks.movie_snippets import MovieSnippets
from experiments.tasks.samplers import Balanced, Sampler, Shuffled
from experiments.tasks.spoken_digits import SpokenDigits
from tests import app
from tests.experiments.tasks.test_sequences import load

LENGTHS = np.random.default_rng(0).integers(5, 90, 1_000)
ALL = (0, 1, 2, 3)


def batches(sampler: Sampler, ranks: tuple[int, ...] = ALL, seed: int = 0) -> Batches:
    return Batches(
        num_examples=1_000,
        world_size=4,
        ranks=ranks,
        batch_size=8,
        seed=seed,
        order=sampler.order(LENGTHS),
    )


def epoch(sampler: Sampler, number: int = 0) -> np.ndarray:
    """The examples of its steps [steps, w, b]."""
    own = batches(sampler)
    first = number * own.steps_per_epoch
    return np.stack([own.indices(step) for step in range(first, first + own.steps_per_epoch)])


def slowest(sampler: Sampler) -> float:
    """The mean over steps of the longest example of all workers."""
    return LENGTHS[epoch(sampler)].max((1, 2)).mean()


def test_the_default_order_is_the_plain_permutation():
    permutation = np.random.default_rng(np.random.SeedSequence((0, 2))).permutation(1_000)
    for step, batch_wb in enumerate(epoch(Shuffled(), 2)):
        for rank in ALL:
            of_all = permutation[32 * step : 32 * step + 32]
            np.testing.assert_array_equal(batch_wb[rank], of_all[rank::4])


@pytest.mark.parametrize("sampler", [Balanced(), Balanced(random_level=0, shuffle=False)])
def test_an_epoch_repeats_no_example(sampler):
    for number in range(2):
        indices = epoch(sampler, number)
        assert indices.shape == (31, 4, 8) and len(np.unique(indices)) == indices.size


def test_a_real_worker_sees_what_its_row_of_a_simulated_run_sees():
    for step in (0, 30, 31, 95):
        for rank in ALL:
            own = batches(Balanced(), (rank,)).indices(step)
            np.testing.assert_array_equal(own[0], batches(Balanced()).indices(step)[rank])


def test_the_longest_of_a_step_is_near_the_mean():
    mean = LENGTHS.mean()
    assert slowest(Balanced(random_level=0)) < 1.05 * mean
    assert slowest(Balanced(random_level=0)) < slowest(Balanced()) < 1.25 * mean
    assert slowest(Shuffled()) > 1.7 * mean
    assert slowest(Balanced(random_level=1)) == pytest.approx(slowest(Shuffled()), rel=0.03)


def test_epochs_and_seeds_have_orders_of_their_own():
    firsts = [batches(Balanced(), seed=s).indices(31 * e).tobytes() for s in (0, 1) for e in (0, 1)]
    assert len(set(firsts)) == 4
    without = Balanced(random_level=0, shuffle=False)
    np.testing.assert_array_equal(epoch(without, 0), epoch(without, 1))


@pytest.mark.parametrize(
    ("task", "model"),
    [(SpokenDigits(), BiGRU()), (MovieSnippets(), FastText())],
    ids=["digits", "text"],
)
def test_what_a_batch_is_cut_of_changes_no_output(task, model):
    train = load(task).train
    lengths = task.lengths(train)
    assert lengths.min() >= 1 and lengths.max() <= train.x.shape[1]
    short = np.argsort(lengths, kind="stable")[:20]
    longest = lengths[short].max()
    assert longest < train.x.shape[1] / 3
    with torch.no_grad():
        whole = model(task.inputs(torch.from_numpy(train.x[short])))
        cut = model(task.inputs(torch.from_numpy(train.x[short, :longest])))
        too_short = model(task.inputs(torch.from_numpy(train.x[short, : longest - 1])))
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(too_short, whole)


def test_examples_of_a_task_without_padding_are_equally_long():
    task = make_plan(compose_config(["algo=allreduce"]), Path()).task
    assert task.lengths(Split(np.zeros((3, 28, 28)), np.zeros(3))).tolist() == [28] * 3


def test_real_and_simulated_runs_on_balanced_batches_have_equal_losses(tmp_path):
    load(SpokenDigits())
    losses = {}
    small = ("workers=2", "max_steps=5", "eval_every=5", "log_every=1", "batch_size=4")
    for backend in ("gloo", "sim"):
        folder = tmp_path / backend
        words = ("+algo=allreduce", "experiment=spoken_digits", *small, "net=none")
        chosen = ("data.sampler=balanced", f"backend={backend}", f"hydra.run.dir={folder}")
        ended = app.run(*words, *chosen)
        assert ended.returncode == 0, ended.stderr
        losses[backend] = [row.loss for row in load_rows(folder) if row.kind == "step"]
    assert len(losses["sim"]) == 5
    assert losses["sim"] == pytest.approx(losses["gloo"], rel=1e-4)


def test_an_impossible_level_is_refused():
    with pytest.raises(ValueError, match=r"random_level must be in \[0, 1\], got 2"):
        Balanced(random_level=2)
