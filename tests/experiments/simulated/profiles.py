"""Profiles that are made up, where tests need numbers that they know."""

from experiments.simulated.profile import JobKernels, Profile


def profile_of_a_second() -> Profile:
    """Of a worker whose step takes 1 s without communication: its gradients come after 0.9 s, in
    one bucket, whose kernels take no time.
    """
    return Profile(
        device="made up",
        sharing=1,
        setting={},
        forward_s=0.5,
        late_s=0.0,
        ready_s=(0.4,),
        backward_s=0.4,
        optimizer_s=0.1,
        jobs=(JobKernels(moment="on_bucket_ready", bucket=0, kernels_s=(0.0, 0.0)),),
    )
