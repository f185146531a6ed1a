from dataclasses import replace

from experiments.profile import Job, Profile
from experiments.rehearsal import _typical

EVERY_STEP = Job(moment="on_bucket_ready", bucket=0, kernels_s=(1.0, 2.0))
ROUND = Job(moment="on_background", bucket=None, kernels_s=(4.0, 5.0, 6.0))
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
