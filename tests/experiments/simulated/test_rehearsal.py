import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, replace
from time import monotonic

import pytest
import torch
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LambdaLR

from bagua_algos import Algorithm
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.profile import JobKernels, Profile
from experiments.simulated.rehearsal import NUM_TOLD, _typical, rehearse
from host.errors import Failure

KERNEL_S = 0.2
EVERY_STEP = JobKernels(moment="on_bucket_ready", bucket=0, kernels_s=(1.0, 2.0))
ROUND = JobKernels(moment="on_background", bucket=None, kernels_s=(4.0, 5.0, 6.0))
PROFILE = Profile(
    device="made up",
    sharing=1,
    setting={},
    forward_s=1.0,
    late_s=0.0,
    ready_s=(1.0,),
    backward_s=2.0,
    optimizer_s=3.0,
    jobs=(EVERY_STEP,),
)


def test_a_job_that_only_some_workers_had_is_kept():
    slower = replace(EVERY_STEP, kernels_s=(3.0, 2.0))
    typical = _typical([PROFILE, replace(PROFILE, forward_s=2.0, jobs=(ROUND, slower))], sharing=2)
    assert typical.forward_s == 1.5
    assert typical.jobs == (replace(EVERY_STEP, kernels_s=(2.0, 2.0)), ROUND)


@pytest.mark.parametrize(
    ("algo", "soon", "late"),
    [
        ("qadam", "algo.warmup_steps=10", "algo.warmup_steps=200"),
        ("power_sgd", "algo.warmup_steps=10", "algo.warmup_steps=200"),
        ("post_local_sgd", "algo.start_step=10", "algo.start_step=500"),
    ],
)
def test_what_an_algorithm_does_late_is_rehearsed_as_what_it_does_soon(algo, soon, late, tmp_path):
    torch.set_num_threads(1)

    def jobs_of(when):
        config = compose_config(
            [f"algo={algo}", when, "backend=sim", "model=mlp", "workers=2", "max_steps=1000"]
        )
        plan = make_plan(config, tmp_path)
        profile = rehearse(plan, plan.task.load(), sharing=2, seconds=0)
        return Counter(job.key for job in profile.jobs)

    of_late = jobs_of(late)
    assert of_late == jobs_of(soon)
    assert len({moment for moment, _, _ in of_late}) > 1 or len(of_late) > 1


@pytest.mark.parametrize(
    "words",
    [
        ("algo=diloco_int8",),
        ("algo=slowmo",),
        ("algo=low_precision_decentralized",),
        ("algo=decentralized",),
        ("algo=post_local_sgd", "algo.start_step=50"),
    ],
    ids=" ".join,
)
def test_a_round_after_many_steps_is_rehearsed_as_one_after_few(words, tmp_path):
    torch.set_num_threads(1)

    def jobs_of(interval):
        config = compose_config(
            [*words, f"algo.interval={interval}", *("backend=sim", "model=mlp", "workers=2")]
        )
        plan = make_plan(config, tmp_path)
        profile = rehearse(plan, plan.task.load(), sharing=1, num_steps=20, seconds=0)
        return {job.key for job in profile.jobs}

    assert jobs_of(1000) == jobs_of(21) == jobs_of(5)


ONE_CYCLE = (
    *("schedule._target_=torch.optim.lr_scheduler.OneCycleLR", "~schedule.factor"),
    *("~schedule.total_iters", "+schedule.max_lr=0.1", "+schedule.total_steps=24"),
)


@pytest.mark.parametrize(
    "words",
    [
        ("algo=slowmo", "schedule=rise_and_fall", "max_steps=24"),
        ("algo=slowmo", "schedule=cosine", "max_steps=23"),
        ("algo=allreduce", *ONE_CYCLE, "max_steps=24"),
    ],
    ids=["rise_and_fall", "cosine", "one_cycle"],
)
def test_a_rehearsal_may_be_longer_than_the_run_and_its_schedule(words, tmp_path):
    torch.set_num_threads(1)
    plan = make_plan(compose_config([*words, "backend=sim", "model=mlp", "workers=2"]), tmp_path)
    assert rehearse(plan, plan.task.load(), sharing=1, seconds=0).optimizer_s > 0


@dataclass(frozen=True, kw_only=True)
class AtRate(Algorithm):
    """Fails where a step has another learning rate."""

    rate: float

    def on_step_end(self, context):
        assert context.optimizer.param_groups[0]["lr"] == pytest.approx(self.rate)


@pytest.mark.parametrize(
    ("factor", "share"),
    [(lambda step: 0.5 - step / 24, 0.5), (lambda step: step / 24, 0.01)],
    ids=["falls", "begins_with_0"],
)
def test_a_rehearsal_keeps_the_learning_rate_that_the_run_begins_with(factor, share, tmp_path):
    torch.set_num_threads(1)
    words = ["algo=allreduce", "backend=sim", "model=mlp", "optim.lr=0.1"]
    plan = replace(
        make_plan(compose_config(words), tmp_path),
        algorithm=AtRate(rate=0.1 * share),
        make_schedule=lambda optimizer: LambdaLR(optimizer, factor),
    )
    rehearse(plan, plan.task.load(), sharing=1, seconds=0)


def rehearsed_from_scale(scale, folder, monkeypatch, **options):
    torch.set_num_threads(1)
    monkeypatch.setattr(
        "experiments.training.step.make_scaler", lambda _: GradScaler("cpu", init_scale=scale)
    )
    words = ["algo=bytegrad", "backend=sim", "model=mlp", "workers=2", "precision=float16"]
    plan = make_plan(compose_config(words), folder)
    return rehearse(plan, plan.task.load(), sharing=1, seconds=0, **options)


def test_steps_that_overflow_are_not_of_a_profile(monkeypatch, tmp_path):
    """The scale comes down from far above float16's range, also in steps that would count."""
    profile = rehearsed_from_scale(2.0**60, tmp_path, monkeypatch, num_steps=60)
    assert 0 < profile.ready_s[0] <= profile.backward_s
    assert profile.optimizer_s > 0
    assert {job.moment for job in profile.jobs} == {"on_bucket_ready"}


def test_a_rehearsal_whose_every_step_overflows_says_so(monkeypatch, tmp_path, capfd):
    with pytest.raises(Failure, match="gradients overflow in every step that is rehearsed"):
        rehearsed_from_scale(2.0**100, tmp_path, monkeypatch, num_steps=3)
    assert "Traceback" not in capfd.readouterr().err


@dataclass(frozen=True, kw_only=True)
class AtStepBegin(Algorithm):
    """Waits for a moment before the optimizer's step, between two kernels of as long."""

    def on_step_begin(self, context):
        time.sleep(KERNEL_S)
        context.communicator.all_reduce_mean_(context.buckets[0].gradients)
        time.sleep(KERNEL_S)


def test_jobs_of_the_optimizers_moment_are_none_of_its_time(tmp_path):
    torch.set_num_threads(1)
    plan = make_plan(compose_config(["algo=allreduce", "backend=sim", "model=mlp"]), tmp_path)
    plan = replace(plan, algorithm=AtStepBegin())
    profile = rehearse(plan, plan.task.load(), sharing=1, seconds=0, num_steps=3)
    (job,) = profile.jobs
    assert (job.moment, min(job.kernels_s) >= KERNEL_S) == ("on_step_begin", True)
    assert profile.optimizer_s < KERNEL_S


def test_a_rehearsing_worker_that_is_killed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "experiments.simulated.rehearsal._run", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    plan = make_plan(compose_config(["algo=allreduce", "model=mlp", "backend=sim"]), tmp_path)
    with pytest.raises(Failure, match="rehearsing worker 0 was killed by SIGTERM"):
        rehearse(plan, plan.task.load(), sharing=1)


@pytest.mark.parametrize("seconds", [0, 0.5])
def test_a_rehearsal_tells_how_far_it_has_come(seconds, tmp_path):
    """Once for each of its parts, most of them before it ends, also with several workers."""
    plan = make_plan(compose_config(["algo=allreduce", "model=mlp", "backend=sim"]), tmp_path)
    told_s: list[float] = []
    rehearse(
        plan, plan.task.load(), sharing=2, seconds=seconds, tell=lambda: told_s.append(monotonic())
    )
    assert len(told_s) == NUM_TOLD
    assert told_s[-1] - told_s[0] >= seconds / 5
