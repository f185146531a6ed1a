import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from torch.optim import SGD

from bagua_algos.algorithms.all_reduce import AllReduce
from bagua_algos.algorithms.compressed_all_reduce import CompressedAllReduce
from bagua_algos.algorithms.local_sgd import LocalSGD
from bagua_algos.algorithms.low_precision_decentralized import LowPrecisionDecentralized
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from experiments.advise.map.job import Job
from experiments.advise.map.sent import sent_of
from experiments.advise.map.standing import grids, sent_by
from experiments.advise.map.times import IDEAL, Setting, step_s, times_by, times_s
from experiments.advise.map.trainings import load
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.outcome import record_training
from experiments.simulated.profile import Profile
from experiments.simulated.replay import step_ends_s
from netsim.conditions.link import wire_per_payload
from netsim.timeline.compute import ComputeTimes
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline

WIRE_PER_PAYLOAD = wire_per_payload()

TRAINED = load()[1][0]
ALGOS = (  # one of each kind of operations
    *("allreduce", "qsgd", "decentralized", "diloco_int8", "local_sgd"),
    *("post_local_sgd", "power_sgd", "sgp", "top_k"),
)
STEPS = np.array([1.0, 40.0, 175.0, 400.0])
JOB = Job(compute_ms=180, model_mb=440, workers=8, rate_mbit=10_000, delay_ms=5)


def sent_of_first(algo, workers):
    return sent_by(TRAINED, TRAINED.of(algo)[0], workers)


def times(algo, job):
    return times_s(sent_of_first(algo, job.workers), job, STEPS)


def all_reduce(workers):
    return sent_of(AllReduce(), partial(SGD, lr=0.1), [(64, 64)], workers)


def test_where_bytes_rule_all_reduce_takes_rho():
    job = Job.at(1000, 1e-6, workers=8, compute_ms=7, model_mb=30)
    took_s = step_s(all_reduce(8), job)
    assert took_s == pytest.approx(1000 * WIRE_PER_PAYLOAD * job.compute_s, rel=2e-3)


def test_where_delay_rules_all_reduce_takes_as_many_messages_as_halving_and_doubling():
    job = Job.at(1e-4, 2.0, workers=8, compute_ms=7, model_mb=30)
    took_s = step_s(all_reduce(8), job)
    assert took_s == pytest.approx((1 + 2 * 3 * 2.0) * job.compute_s, rel=1e-3)


def test_between_two_averages_local_sgd_takes_its_compute():
    sent = sent_of(LocalSGD(interval=8), partial(SGD, lr=0.1), [(64, 64)], 8)
    ends_s = times_s(sent, JOB, np.arange(1.0, 33.0))
    lasted_s = np.diff(ends_s, prepend=0)
    assert lasted_s[[0, 6, 8, 30]] == pytest.approx(JOB.compute_s)
    averaged_s = lasted_s[7::8]
    ideal_s = JOB.rho * JOB.compute_s * WIRE_PER_PAYLOAD
    assert (averaged_s > JOB.compute_s + ideal_s).all()
    assert averaged_s == pytest.approx(averaged_s[0])


@pytest.mark.parametrize("algo", ALGOS)
def test_without_loss_nothing_has_a_unit(algo):
    own = times(algo, JOB)
    slow = replace(JOB, compute_ms=7 * 180, delay_ms=7 * 5, rate_mbit=10_000 / 7)
    assert times(algo, slow) == pytest.approx(7 * own, rel=1e-9)
    large = replace(JOB, model_mb=3 * 440, rate_mbit=3 * 10_000)
    assert times(algo, large) == pytest.approx(own, rel=1e-5)


@pytest.mark.parametrize("algo", ALGOS)
def test_nothing_has_a_unit_either_where_links_are_slow_and_delays_long(algo):
    slow, fast = (
        Job(compute_ms=long, model_mb=2, workers=8, rate_mbit=rate, delay_ms=long, loss_pct=0)
        for long, rate in ((1000, 1), (1, 1000))
    )
    assert times(algo, slow) == pytest.approx(1000 * times(algo, fast), rel=1e-9)


def test_the_ranking_and_the_ties_have_no_unit_either():
    scaled = replace(JOB, compute_ms=18, delay_ms=0.5, rate_mbit=100_000)
    [at], [at_scaled] = (grids([TRAINED], [[job]]) for job in (JOB, scaled))
    for one, other in zip(at, at_scaled, strict=True):
        assert one.first(0, 0) == other.first(0, 0)
        assert one.ties(0, 0) == other.ties(0, 0)


@pytest.mark.parametrize("delay_ms", [5, 25])
@pytest.mark.parametrize("algo", ALGOS)
def test_a_better_network_is_never_slower(algo, delay_ms):
    job = replace(JOB, delay_ms=delay_ms)
    near = 1 + 1e-9
    for worse, better in itertools.pairwise(
        [
            replace(job, loss_pct=1.0),
            replace(job, loss_pct=0.1),
            replace(job, loss_pct=1e-12),
            job,
            replace(job, delay_ms=0.5),
            replace(job, delay_ms=0.5, rate_mbit=40_000),
        ]
    ):
        assert (times(algo, better) <= times(algo, worse) * near).all()


def no_work(plan, backward_s):
    return Profile(
        device="none",
        sharing=1,
        setting={},
        forward_s=backward_s / 2,
        late_s=0.0,
        ready_s=(backward_s,),
        backward_s=backward_s,
        optimizer_s=0.0,
        jobs=(),
    )


@pytest.mark.parametrize("algo", ["bytegrad", "local_sgd", "sgp", "qadam"])
def test_times_are_those_of_the_simulated_app(algo, tmp_path):
    """The operations of a real training of the app, on the clocks of the same cost model."""
    words = [f"algo={algo}", "model=mlp", "model.hidden=[8]", "task=mnist5k", "backend=sim"]
    words += ["workers=4", "max_steps=20", "eval_every=20", "target_accuracy=null"]
    words += ["algo.warmup_steps=6"] if algo == "qadam" else []
    plan = make_plan(compose_config(words), tmp_path)
    backward_s = 0.04
    training = record_training(plan, plan.task.load(), no_work(plan, backward_s))
    shapes = [tuple(parameter.shape) for parameter in plan.model.parameters()]
    sent = sent_of(plan.algorithm, plan.make_optimizer, shapes, 4)
    job = Job(
        compute_ms=1500 * backward_s,
        model_mb=sent.num_bytes / 1e6,
        workers=4,
        rate_mbit=10,
        delay_ms=3,
    )
    compute = ComputeTimes(
        forward_s=backward_s / 2, backward_s=backward_s, bucket_ready_s=(backward_s,)
    )
    timeline = Timeline(CostModel(job.net, 4, IDEAL), compute, num_lanes=1)
    ends_s = np.array(step_ends_s(training.script, timeline))
    steps = np.arange(1.0, 21.0)
    own_s = times_by(sent, job, steps, Setting(num_buckets=1, is_halving=False))
    assert own_s == pytest.approx(ends_s, rel=1e-9)
    assert (times_s(sent, job, steps) <= own_s * (1 + 1e-9)).all()


@pytest.mark.parametrize("algo", ["allreduce", "local_sgd", "post_local_sgd"])
def test_within_a_step_time_goes_on_in_proportion(algo):
    """Also within the first, within one after steps of another kind, and within a later period."""
    whole = np.arange(0.0, 400.0)
    at_s = times_by(sent_of_first(algo, 8), JOB, whole, Setting(num_buckets=1, is_halving=False))
    assert at_s[0] == 0 and (np.diff(at_s) > 0).all()
    between = np.array([0.25, 6.5, 99.75, 100.5, 350.125])
    own_s = times_by(sent_of_first(algo, 8), JOB, between, Setting(num_buckets=1, is_halving=False))
    assert own_s == pytest.approx(np.interp(between, whole, at_s), rel=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [AllReduce(), CompressedAllReduce(compressor=MinMaxUInt8()), LowPrecisionDecentralized()],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_one_bucket_cut_into_four_is_what_the_algorithm_does_with_four(algorithm):
    """But for what each chunk of a code has of its own."""
    sent = partial(sent_of, algorithm, partial(SGD, lr=0.1), [(64, 64)] * 4, 4)
    own, cut = sent(bucket_bytes=4 * 64 * 64), sent().of_size(4 * 4 * 64 * 64, 4)
    assert own.num_bytes == cut.num_bytes

    def operations(step):
        return [
            (job.moment, job.bucket, part.name, part.num_bytes)
            for job in step
            for part in job.work
            if not isinstance(part, float)
        ]

    for one, other in zip(operations(own.period[0]), operations(cut.period[0]), strict=True):
        assert one[:3] == other[:3]
        assert one[3] == pytest.approx(other[3], rel=0.01)
