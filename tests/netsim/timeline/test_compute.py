import numpy as np
import pytest

from netsim.timeline.compute import (
    ComputeTimes,
    Constant,
    Lognormal,
    Straggler,
    Trace,
    even_buckets,
)


def test_constant_workers_are_alike():
    assert Constant().factors(7, 3).tolist() == [1, 1, 1]


def test_lognormal_factors_have_mean_1_and_their_sigma():
    factors = Lognormal(sigma=0.5).factors(0, 200_000)
    assert factors.mean() == pytest.approx(1, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.5, abs=0.01)


def test_factors_follow_from_seed_and_step_alone():
    jitter = Lognormal(sigma=0.3, seed=1)
    again = Lognormal(sigma=0.3, seed=1)
    assert [jitter.factors(step, 4).tolist() for step in (0, 1, 2)] == [
        again.factors(step, 4).tolist() for step in (0, 1, 2)
    ]
    assert jitter.factors(0, 4).tolist() != jitter.factors(1, 4).tolist()
    assert jitter.factors(0, 4).tolist() != Lognormal(sigma=0.3, seed=2).factors(0, 4).tolist()


def test_a_straggler_is_one_worker_and_slow_in_its_share_of_the_steps():
    assert Straggler(worker=1, slowdown=3).factors(5, 3).tolist() == [1, 3, 1]
    jitter = Lognormal(sigma=0.3)
    factors = Straggler(variation=jitter, slowdown=3).factors(5, 3)
    assert factors.tolist() == (jitter.factors(5, 3) * [3, 1, 1]).tolist()
    rare = Straggler(worker=0, slowdown=2, share=0.25)
    slow = [rare.factors(step, 2)[0] == 2 for step in range(2000)]
    assert np.mean(slow) == pytest.approx(0.25, abs=0.03)


def test_when_a_straggler_is_slow_says_nothing_of_its_jitter():
    jitter = Lognormal(sigma=1.0)
    rare = Straggler(variation=jitter, slowdown=1000, share=0.05)
    own = np.array([jitter.factors(step, 1)[0] for step in range(2000)])
    is_slow = [rare.factors(step, 1)[0] > 500 * own[step] for step in range(2000)]
    assert np.log(own[is_slow]).std() == pytest.approx(np.log(own).std(), abs=0.2)


def test_a_trace_has_a_factor_for_all_or_one_for_each():
    trace = Trace(steps=[1.5, [1, 2, 3]])
    assert trace.factors(0, 3).tolist() == [1.5, 1.5, 1.5]
    assert trace.factors(1, 3).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: Trace(steps=[1, 1]).factors(2, 1), "ends after 2 steps and training goes on: rec"),
        (lambda: Trace(steps=[[1, 1]]).factors(0, 3), "Step 0 .* has 2 workers, and there are 3"),
        (
            lambda: Trace(steps=[1, [1, 1], [1, 1, 1], 1]).factors(0, 2),
            "Step 2 .* has 3 workers, and there are 2",
        ),
        (lambda: Trace(steps=[]), "needs at least one step"),
        (lambda: Trace(steps=[[1, -1]]), "A factor of a trace has to be .* not -1"),
        (lambda: Straggler(worker=4, slowdown=2).factors(0, 4), "worker 4, and 4 workers have"),
        (lambda: Straggler(worker=-1, slowdown=2), "worker is a rank from 0 up, not -1"),
        (lambda: Straggler(worker=0, slowdown=0.5), "slowdown=0.5 is no slowdown"),
        (lambda: Straggler(worker=0, slowdown=2, share=2), "choose 0 to 1, not 2"),
        (lambda: Lognormal(sigma=-1), "sigma has to be a finite number from 0 up, not -1"),
        (lambda: Lognormal(sigma=1, seed=-1), "seed has to be a finite number from 0 up, not -1"),
        (lambda: ComputeTimes(forward_s=-1, backward_s=1), "forward_s has to be .* not -1"),
        (
            lambda: ComputeTimes(forward_s=1, backward_s=1, bucket_ready_s=(0.5, 2)),
            "bucket_ready_s has 2 before 1: .* within backward_s=1",
        ),
        (
            lambda: ComputeTimes(forward_s=1, backward_s=1, bucket_ready_s=(0.5,)).ready_s(1),
            "Bucket 1 has no time in bucket_ready_s, which has 1",
        ),
    ],
)
def test_refuses_what_is_no_compute_time(call, reason):
    with pytest.raises(ValueError, match=reason):
        call()


def test_even_buckets_end_with_backward():
    assert even_buckets(0.4, 4) == pytest.approx((0.1, 0.2, 0.3, 0.4))
