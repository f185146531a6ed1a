import os
import signal
from collections import Counter
from dataclasses import replace
from time import monotonic

import pytest
import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.profile import JobKernels, Profile
from experiments.simulated.rehearsal import NUM_TOLD, _typical, rehearse
from host.errors import Failure

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


def test_a_rehearsing_worker_that_is_killed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "experiments.simulated.rehearsal._run", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    plan = make_plan(compose_config(["algo=allreduce", "model=mlp", "backend=sim"]), tmp_path)
    with pytest.raises(Failure, match="rehearsing worker 0 was killed by SIGTERM"):
        rehearse(plan, plan.task.load(), sharing=1)


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_rehearsal_tells_how_far_it_has_come(seconds, tmp_path):
    """Once for each of its parts, most of them before it ends, also with several workers."""
    plan = make_plan(compose_config(["algo=allreduce", "model=mlp", "backend=sim"]), tmp_path)
    told_s: list[float] = []
    rehearse(
        plan, plan.task.load(), sharing=2, seconds=seconds, tell=lambda: told_s.append(monotonic())
    )
    assert len(told_s) == NUM_TOLD
    assert told_s[-1] - told_s[0] > max(seconds / 2, 0.005)
