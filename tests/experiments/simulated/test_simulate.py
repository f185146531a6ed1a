import json
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import yaml

from bagua_algos import Algorithm
from bagua_algos.communication.communicator import Operation
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.load import load_rows
from experiments.simulated.profile import JobKernels, Profile, setting_of
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.replay import step_ends_s
from experiments.simulated.simulate import make_timeline, too_long, train_simulated, transport
from host.errors import UserError
from netsim.timeline.timeline import TimelineJob
from netsim.timeline.transport import GLOO
from tests import app
from tests.experiments.simulated.profiles import profile_of_a_second
from tests.experiments.tasks.test_sequences import load
from tests.paths import ROOT

PROFILES = ROOT / "results/reference/profiles"
MANY = ("workers=3000", "batch_size=1")
SMALL = ("model=mlp", "workers=2", "max_steps=12", "eval_every=6", "log_every=1", "net=slow_tcp")


def plan_of(folder, *overrides):
    words = ["algo=bytegrad", *SMALL, "backend=sim", "cluster.stacking=vmap", *overrides]
    return make_plan(compose_config(words), folder)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    torch.set_num_threads(1)
    plan = plan_of(tmp_path_factory.mktemp("rehearsal"))
    data = plan.task.load()
    return data, rehearse(plan, data, sharing=2, num_steps=20, seconds=0)


@dataclass(frozen=True, kw_only=True)
class Alone(Algorithm):
    """Leaves workers to themselves, and promises equal gradients."""

    gradients_agree: ClassVar[bool] = True


def test_an_algorithm_that_does_not_keep_its_promise_is_refused(rehearsed, tmp_path):
    data, profile = rehearsed
    plan = replace(plan_of(tmp_path), algorithm=Alone())
    with pytest.raises(
        UserError, match=r"algo=bytegrad: .* set gradients_agree = False in its class"
    ):
        times_of(data, profile, plan)


def times_of(data, profile, plan):
    rows = []
    result, clocks = train_simulated(plan, data, profile, rows.append)
    return [row.time_s for row in rows if row.kind == "step"], clocks, result


def test_real_and_simulated_runs_have_equal_losses(tmp_path):
    losses = {}
    for backend in ("gloo", "sim"):
        folder = tmp_path / backend
        ended = app.run("algo=bytegrad", *SMALL, f"backend={backend}", f"hydra.run.dir={folder}")
        assert ended.returncode == 0, ended.stderr
        losses[backend] = [row.loss for row in load_rows(folder) if row.kind == "step"]
    # Codes may differ where a sum that was added in another order lies at a rounding tie.
    assert losses["sim"] == pytest.approx(losses["gloo"], rel=2e-3)
    assert app.summary(tmp_path / "sim")["backend"] == "sim"
    Profile.load(tmp_path / "sim" / "profile.yaml")


def test_a_profile_has_a_kernel_before_between_and_after_operations(rehearsed):
    _, profile = rehearsed
    (job,) = profile.jobs
    assert (job.moment, job.bucket, len(job.kernels_s)) == ("on_bucket_ready", 0, 3)
    assert min(job.kernels_s) > 0
    assert 0 < profile.ready_s[0] <= profile.backward_s
    assert profile.sharing == 2


def test_a_job_with_other_operations_than_were_rehearsed_takes_as_long():
    """The nearest one counts; what was not rehearsed at all, or sends nothing, is free."""
    jobs = [(0, (9.0,)), (0, (1.0, 2.0, 3.0)), (0, (1.0,) * 8), (1, (1.0, 2.0, 3.0))]
    profile = replace(
        profile_of_a_second(),
        jobs=tuple(
            JobKernels(moment="on_bucket_ready", bucket=bucket, kernels_s=kernels_s)
            for bucket, kernels_s in jobs
        ),
    )
    assert profile.kernels_s("on_bucket_ready", 0, 2) == (1.0, 2.0, 3.0)
    assert profile.kernels_s("on_bucket_ready", 0, 0) == (9.0,)
    assert profile.kernels_s("on_bucket_ready", 0, 3) == (1.5,) * 4
    assert profile.kernels_s("on_bucket_ready", 0, 9) == (0.8,) * 10
    assert profile.kernels_s("on_bucket_ready", 1, 0) == (0.0,)
    assert profile.kernels_s("on_bucket_ready", 2, 1) == (0.0,) * 2
    assert profile.kernels_s("on_step_end", 0, 2) == (0.0,) * 3


def test_a_profile_survives_its_file(rehearsed, tmp_path):
    _, profile = rehearsed
    profile.save(tmp_path / "p.yaml")
    again = Profile.load(tmp_path / "p.yaml")
    assert again.setting == profile.setting
    assert again.backward_s == pytest.approx(profile.backward_s, rel=1e-3)
    assert [job.key for job in again.jobs] == [job.key for job in profile.jobs]


def job(**values):
    return {"moment": "on_bucket_ready", "bucket": 0, "kernels_s": [0.1, 0.2]} | values


@pytest.mark.parametrize(
    "values",
    [
        {"forward_s": "fast"},
        {"optimizer_s": -1.0},
        {"late_s": math.nan},
        {"ready_s": [2.0], "backward_s": 1.0},
        {"ready_s": None},
        {"late_s": -0.02},
        {"mean_places": "many"},
        {"per_place": -1.0},
        {"setting": None},
        {"device": 5},
        {"jobs": [job(kernels_s=[math.inf])]},
        {"jobs": [job(kernels_s=[-0.05, 0.1])]},
        {"jobs": [job(kernels_s=[])]},
        {"jobs": [job(kernels_s=[True])]},
        {"jobs": [job(moment="on_bucket_redy")]},
        {"jobs": [job(moment=3)]},
        {"jobs": [job(bucket="0")]},
        {"jobs": [job(), job(kernels_s=[1.0, 1.0])]},
    ],
    ids=str,
)
def test_a_profile_of_times_that_no_step_takes_is_refused(values, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({**profile_of_a_second().plain(), **values}))
    with pytest.raises(UserError, match=r"p\.yaml cannot be read .*: make one by"):
        Profile.load(file)


def test_a_run_that_takes_no_time_has_no_speed(tmp_path):
    """One worker, which sends nothing."""
    free = {"forward_s": 0.0, "backward_s": 0.0, "ready_s": [0.0], "optimizer_s": 0.0}
    plan = plan_of(tmp_path)
    setting = setting_of(plan, plan.task.load())
    values = {**profile_of_a_second().plain(), **free, "setting": setting}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(values))
    words = ("algo=bytegrad", *SMALL, "workers=1", "backend=sim", f"profile={tmp_path / 'p.yaml'}")
    ended = app.run(*words, f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.returncode == 0, ended.stderr
    assert app.summary(tmp_path / "run")["steps_per_s"] is None


def test_one_worker_that_is_its_own_peer_waits_for_nobody(rehearsed, tmp_path):
    data, _ = rehearsed
    plan = plan_of(tmp_path, "algo=sgp", "algo.topology=random_matching", "workers=1")
    ends_s, _, _ = times_of(data, profile_of_a_second(), plan)
    assert ends_s == pytest.approx([1.0 + step for step in range(12)])


@pytest.mark.parametrize("timeout_s", [30, 300])
def test_who_waits_longer_than_real_workers_would_says_so(timeout_s, rehearsed, tmp_path):
    """A link is down for 200 s."""
    data, _ = rehearsed
    fault = "net.faults=[{worker: 1, at_s: 0.5, for_s: 200}]"
    plan = plan_of(tmp_path, fault, f"cluster.timeout_s={timeout_s}")
    _, clocks = train_simulated(plan, data, profile_of_a_second(), lambda row: None)
    remark = too_long(plan, clocks.timeline)
    assert clocks.now_s() > 200
    if timeout_s > 200:
        assert remark is None
    else:
        assert remark is not None and "cluster.timeout_s=30 and may have failed" in remark
        seconds = float(remark.split(" for ")[1].split()[0])
        assert seconds == pytest.approx(200, rel=0.01)  # from the first bucket on, after 0.9 s


def test_a_slower_network_takes_longer_and_changes_no_value(rehearsed, tmp_path):
    data, profile = rehearsed
    fast, _, result = times_of(data, profile, plan_of(tmp_path, "net.rate_mbit=1000"))
    slow, _, same = times_of(data, profile, plan_of(tmp_path, "net.rate_mbit=10"))
    assert all(a < b for a, b in zip(fast, slow, strict=True))
    assert result.test == same.test


def test_a_replay_on_another_network_is_the_simulation_there(rehearsed, tmp_path):
    data, profile = rehearsed
    _, clocks, _ = times_of(data, profile, plan_of(tmp_path))
    there = plan_of(tmp_path, "net=wan")
    simulated, _, _ = times_of(data, profile, there)
    assert step_ends_s(clocks.script, make_timeline(there, profile)) == pytest.approx(simulated)


def test_more_streams_are_faster_where_packets_are_lost(rehearsed, tmp_path):
    data, profile = rehearsed
    one, clocks, _ = times_of(data, profile, plan_of(tmp_path, "net=lossy"))
    many, _, _ = times_of(data, profile, plan_of(tmp_path, "net=lossy", "streams=8"))
    assert many[-1] < 0.7 * one[-1]
    again = step_ends_s(clocks.script, make_timeline(plan_of(tmp_path, "net=lossy"), profile))
    assert again == pytest.approx(one)


def test_streams_and_pattern_are_the_plan_s():
    assert transport(1, "ring") == transport("auto", "auto") == GLOO
    own = transport(8, "halving_doubling")
    assert (own.streams, own.halving_doubling_bytes > 1e12) == (8, True)


def test_evaluations_take_no_time(rehearsed, tmp_path):
    data, profile = rehearsed
    often, _, _ = times_of(data, profile, plan_of(tmp_path, "eval_every=1"))
    seldom, _, _ = times_of(data, profile, plan_of(tmp_path, "eval_every=12"))
    assert often == pytest.approx(seldom)


def test_a_straggler_delays_those_who_wait_for_it(rehearsed, tmp_path):
    data, profile = rehearsed
    even, _, _ = times_of(data, profile, plan_of(tmp_path, "net=none"))
    late, _, _ = times_of(data, profile, plan_of(tmp_path, "net=none", "cluster.straggler=2"))
    around_s = profile.forward_s + profile.late_s + profile.optimizer_s + profile.warm_up_s / 12
    kernels_s = sum(sum(job.kernels_s) for job in profile.jobs)
    delay_s = (late[-1] - even[-1]) / 12
    # The bucket travels from when it is ready, beside what is left of backward.
    least_s = 2 * (around_s + profile.ready_s[0])
    most_s = 2 * (around_s + profile.backward_s + kernels_s)
    assert 0.99 * least_s <= delay_s <= 1.01 * most_s


def test_an_optimizer_that_overlooks_gaps_between_workers_is_refused(rehearsed, tmp_path):
    data, profile = rehearsed
    with pytest.raises(UserError, match="leave out fused=True"):
        train_simulated(plan_of(tmp_path, "+optim.fused=true"), data, profile, print)


def test_a_profile_of_another_model_is_refused(rehearsed, tmp_path):
    data, profile = rehearsed
    with pytest.raises(UserError, match="profile is of model=mlp, and this run has model=cnn"):
        profile.check(plan_of(tmp_path, "model=cnn", "cluster.sharing=2"), data)


FITTING = ("cluster.sharing=2", "net=two_sites", "workers=4")
"""A run that the fixture's profile is of."""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("algo.compressor=qsgd",),
            r"is of algo\.compressor=MinMaxUInt8, .* algo\.compressor=QSGD: ",
        ),
        (
            ("algo.hierarchical=true",),
            r"is of algo\.hierarchical=False, and this run has .*=True: ",
        ),
        (
            ("cluster.sharing=4",),
            r"is of cluster\.sharing=2, and this run has .*=4: give profile=",
        ),
        (
            ("cluster.threads_per_worker=2",),
            r"is of cluster\.threads_per_worker=1, and this run has",
        ),
        (("device=cuda",), "is of device=cpu, and this run has device=cuda: "),
        (("clip_norm=1",), "is of clipping=False, and this run has clipping=True: "),
    ],
)
def test_a_profile_of_another_kind_of_work_is_refused(words, complaint, rehearsed, tmp_path):
    data, profile = rehearsed
    profile.check(plan_of(tmp_path, *FITTING), data)
    with pytest.raises(UserError, match=complaint):
        profile.check(plan_of(tmp_path, *FITTING, *words), data)


def test_a_profile_serves_workers_that_do_more_or_less_of_its_work(rehearsed, tmp_path):
    """Trials of one search, other numbers of workers, and a GPU's times on a host without one."""
    data, profile = rehearsed
    for words in (("workers=8", "net=wan"), ("algo.error_feedback=true", "lr_scale=2")):
        profile.check(plan_of(tmp_path, *FITTING, *words), data)
    qsgd = plan_of(tmp_path, *FITTING, "algo=qsgd", "algo.compressor.bits=2")
    of_qsgd = replace(profile, setting=setting_of(qsgd, data))
    of_qsgd.check(plan_of(tmp_path, *FITTING, "algo=qsgd", "algo.compressor.bits=8"), data)
    of_gpu = replace(profile, setting={**profile.setting, "device": "cuda"})
    of_gpu.check(plan_of(tmp_path, *FITTING), data)


def test_an_older_profile_is_of_any_kind_of_work(rehearsed, tmp_path):
    data, profile = rehearsed
    newer = ("algo.compressor", "algo.hierarchical", "cluster.threads_per_worker", "device")
    newer = (*newer, "example", "clipping")
    older = {key: value for key, value in profile.setting.items() if key not in newer}
    words = ("algo.compressor=qsgd", "algo.hierarchical=true", "cluster.threads_per_worker=2")
    words = (*words, "device=cuda", "clip_norm=1")
    replace(profile, setting=older).check(plan_of(tmp_path, *FITTING, *words), data)


@pytest.mark.parametrize("name", ["bytegrad", "movies_diloco_int8"])
def test_the_profiles_of_the_reference_study_fit_its_runs_and_those_of_the_map(name, tmp_path):
    profile = Profile.load(PROFILES / f"{name}_w16.yaml")
    own = "reference_movies" if name.startswith("movies_") else "reference"
    words = [f"experiment={own}", f"algo={profile.setting['algo']}"]
    for workers in (8, 16):
        plan = make_plan(compose_config([*words, f"workers={workers}"]), tmp_path)
        profile.check(plan, load(plan.task))


def test_workers_on_gpus_are_timed_by_one_lane(rehearsed, tmp_path):
    """By the kind of the device that their profile is of, which an older one's name tells."""
    _, profile = rehearsed
    of_gpu, older = (replace(profile, setting=s) for s in ({"device": "cuda"}, {}))
    older_gpu = replace(older, device="NVIDIA H200")
    on_cpu, on_gpu = plan_of(tmp_path), plan_of(tmp_path, "device=cuda")

    def num_lanes(plan, profile):
        """So many buckets that are ready at once travel at once."""
        work = [Operation(name="exchange", num_bytes=1_000_000, ranks=(0, 1), peers=(1, 0))]
        jobs = [TimelineJob(moment="bucket_ready", bucket=k, work=work) for k in range(2)]
        timeline = make_timeline(replace(plan, trace=True), replace(profile, ready_s=(0.0, 0.0)))
        timeline.replay(jobs)
        starts_s = {e.start_s for e in timeline.events if e.name == "exchange" and e.worker == 0}
        return 3 - len(starts_s)

    assert num_lanes(on_cpu, profile) == num_lanes(on_cpu, older) == num_lanes(on_gpu, older) == 2
    assert num_lanes(on_gpu, older_gpu) == num_lanes(on_cpu, of_gpu) == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("algo=torch_ddp", "backend=sim"), "needs real workers"),
        (("algo=async", "backend=sim", "precision=float16"), "take precision=bfloat16, or backend"),
        (("algo=allreduce", "backend=sim", "profile=nowhere.yaml"), "profile=nowhere.yaml cannot"),
        (("algo=allreduce", "backend=sim", "workers=5000"), "do not fill one batch"),
        (
            ("algo=allreduce", "backend=sim", f"profile={PROFILES / 'allreduce_w16.yaml'}"),
            "the profile is of task=fashion_mnist, and this run has task=mnist5k",
        ),
        (
            (*("algo=allreduce", "backend=sim", "model=mlp", "model.hidden=[20000]"), *MANY),
            "3000 simulated workers with model=mlp and algo=allreduce need at least 382.1 GB",
        ),
        (
            ("algo=decentralized", "algo.topology=shift_one", "backend=sim", "workers=3"),
            "even",
        ),
        (
            ("algo=allreduce", "backend=sim", "cluster.jitter=trace", "cluster.jitter.steps=[1]"),
            "trace of compute times ends after 1 steps",
        ),
        (("algo=allreduce", "backend=sim", "cluster.straggler=-1"), "straggler must be at least 0"),
        (
            ("algo=allreduce", "backend=sim", "workers=3", "net.workers={7: {rate_mbit: 1}}"),
            "workers names the rank 7, and 3 workers have the ranks 0 to 2",
        ),
        (
            ("algo=allreduce", *SMALL, "backend=sim", "net.workers={1: {up: {loss_pct: 100}}}"),
            "all_reduce_mean never ends: a link that it needs is down for ever",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_a_sentence(words, complaint, tmp_path):
    ended = app.run(*words, f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert complaint in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("backend", ["gloo", "sim"])
def test_a_trace_shows_every_worker_and_lane(backend, tmp_path):
    words = ("algo=bytegrad", *SMALL, "max_steps=3", "trace=true", f"backend={backend}")
    ended = app.run(*words, f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.returncode == 0, ended.stderr
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    compute = [e["name"] for e in spans if (e["pid"], e["tid"]) == (1, 0)]
    for name in ("forward", "backward", "optimizer"):
        assert compute.count(name) == 3
    lane = [e["name"] for e in spans if (e["pid"], e["tid"]) == (1, 1)]
    assert {"kernel", "all_to_all", "all_gather"} <= set(lane)
    assert min(event["ts"] for event in spans) == 0
    assert not list((tmp_path / "run").glob("*.part"))
