"""What is heard of a worker while it trains."""

import pytest

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.real.messages import Alive
from experiments.real.worker import ALIVE_EVERY_S, Voice
from experiments.training.evaluation import BATCH
from tests import app
from tests.experiments.real import slow_steps
from tests.experiments.training.stacked import train_stacked


class Launcher:
    def __init__(self):
        self.heard = []

    def send(self, message):
        self.heard.append(message)


def test_a_worker_says_that_it_is_alive_where_it_has_long_said_nothing():
    now_s, launcher = 100.0, Launcher()
    voice = Voice(launcher, clock=lambda: now_s)
    for at_s, says, heard in (
        (4.9, None, []),
        (5.0, None, [Alive()]),
        (9.9, None, []),
        (9.9, "row", ["row"]),
        (14.8, None, []),
        (14.9, None, [Alive()]),
        (400.0, None, [Alive()]),
    ):
        now_s = 100.0 + at_s / 5.0 * ALIVE_EVERY_S
        if says is not None:
            voice.say(says)
        voice.say_alive()
        assert launcher.heard == heard, at_s
        launcher.heard.clear()


def test_training_tells_of_every_step_and_every_batch_of_an_evaluation(tmp_path):
    told = []
    words = ["algo=allreduce", "model=mlp", "model.hidden=[8]", "workers=2", "backend=sim"]
    words += ["max_steps=4", "eval_every=2", "log_every=100000"]
    plan = make_plan(compose_config(words), tmp_path)
    data = plan.task.load()
    train_stacked(plan, data, lambda row: told.append(row.kind), lambda: told.append("progress"))
    batches, test_batches = (-(-len(split) // 2 // BATCH) for split in (data.validation, data.test))
    an_evaluation = ["progress"] * batches + ["evaluation"]
    expected = ["step", "progress", "progress", *an_evaluation, "progress", "progress"]
    assert told == [*expected, *an_evaluation, *["progress"] * test_batches]


@pytest.mark.root
def test_steps_without_rows_may_take_longer_than_the_launchers_limit(tmp_path):
    words = ["+algo=allreduce", "net=none", "model=mlp", "workers=2", "log_every=100000"]
    words += [f"max_steps={slow_steps.NUM_STEPS}", "eval_every=100000"]
    ended = app.run(*words, f"hydra.run.dir={tmp_path}", module=slow_steps.__name__)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert app.summary(tmp_path)["steps"] == slow_steps.NUM_STEPS
