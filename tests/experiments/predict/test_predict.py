import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from bagua_algos import Algorithm
from bagua_algos.communication.communicator import Operation
from experiments.plan.messages import choices
from experiments.predict.__main__ import main
from experiments.predict.device import Device
from experiments.predict.dry_run import DryRun, meta_buckets
from experiments.predict.predict import _beside, case_of, describe, predict, steady_steps
from host import commands
from host.errors import UserError
from netsim.conditions.link import wire_per_payload
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline
from netsim.timeline.transport import NCCL

WIRE_PER_PAYLOAD = wire_per_payload()

BASE = ("model=vgg16", "net=dc_10g", "workers=16", "device=v100", "max_steps=8")
MACHINES = (
    *("workers=128", "net.rate_mbit=1000000", "net.delay_ms=0"),
    "net.nodes={size: 8, between: {rate_mbit: 10000, delay_ms: 0.02}}",
)
VGG16_PARAMETERS = 138_357_544
HOOKED = {"torch_ddp_bf16", "torch_ddp_powersgd"}


def predicted(*words):
    return predict(case_of([*BASE, *words]))


@pytest.mark.parametrize("algo", sorted(set(choices("algo")) - HOOKED))
def test_every_algorithm_can_be_predicted(algo):
    result = predicted(f"algo={algo}", "model=resnet50", "workers=4")
    assert 0 < result.compute_s <= result.step_s * (1 + 1e-9)
    assert result.examples_per_s == pytest.approx(4 * 32 / result.step_s)


def test_a_fast_network_leaves_the_published_throughput():
    """All but what the fit is off by."""
    figure = next(f for f in Device.load("v100").figures if f.model == "resnet50")
    result = predicted(
        *("model=resnet50", "algo=allreduce", "net=none", "workers=1"),
        f"batch_size={figure.batch_size}",
    )
    assert result.examples_per_s == pytest.approx(figure.examples_per_s, rel=0.05)
    assert result.exposed_share < 0.01


def test_a_flat_ring_crosses_each_machines_nic_once_in_each_direction():
    case = case_of([*BASE, "algo=torch_ddp", *MACHINES])
    result = predict(case)
    sent = 2 * 127 / 128 * 4 * VGG16_PARAMETERS * WIRE_PER_PAYLOAD
    on_nic_s = 8 * sent / 10e9
    forward_s = result.compute_s / 3
    assert on_nic_s < result.step_s < 1.05 * (on_nic_s + forward_s)
    assert result.bytes_sent == pytest.approx(sent, rel=1e-3)


def test_ddps_forward_waits_for_worker_0s_buffers():
    """ResNet-50's moving averages: 26,560 means and variances of float32, and 53 counts of int64.
    None is more than a chunk of NCCL's chain, so all of it leaves three times, one after the other.
    """
    words = ("model=resnet50", "workers=4", "net=none", "net.rate_mbit=10")
    words += ("bucket_bytes=26214400",)
    with_buffers, without = (
        predicted(*words, f"algo={algo}") for algo in ("torch_ddp", "allreduce")
    )
    sent = (2 * 4 * 26_560 + 8 * 53) * WIRE_PER_PAYLOAD
    assert with_buffers.bytes_sent - without.bytes_sent == pytest.approx(sent)
    assert with_buffers.step_s - without.step_s == pytest.approx(3 * 8e-7 * sent, rel=0.02)


def test_the_first_step_that_communicates_waits_for_windows_that_open():
    """Each of NCCL's two channels begins with ten segments, and doubles them in each round trip
    until they fill the link, as Reno does. All weights are in one bucket, and idleness closes no
    window.
    """
    words = ("net=wan", "net.loss_pct=0", "net.tcp_slow_start_after_idle=false", "workers=2")
    words += ("bucket_bytes=1000000000", "net.congestion_control=reno")
    rate, round_trip_s = 100e6 / 8 / WIRE_PER_PAYLOAD, 0.05
    in_flight, waited_s = 2 * 10 * 1448, 0.0
    while in_flight < rate * round_trip_s:
        waited_s += round_trip_s - in_flight / rate
        in_flight *= 2
    every = predicted(*words, "algo=allreduce")
    assert every.first_s == pytest.approx(waited_s, rel=0.01)
    fourth = predicted(*words, "algo=local_sgd", "algo.interval=4")
    assert fourth.first_s == pytest.approx(waited_s, rel=0.01)
    once = predicted(*words, "algo=post_local_sgd", "algo.interval=8", "algo.start_step=1")
    assert once.first_s is None


def test_a_model_without_buffers_is_no_slower_by_ddp():
    words = ("workers=4", "bucket_bytes=26214400")
    by_ddp, by_all_reduce = (
        predicted(*words, f"algo={algo}") for algo in ("torch_ddp", "allreduce")
    )
    assert by_ddp == by_all_reduce


def test_codes_of_a_byte_send_a_quarter():
    full, codes = (predicted(f"algo={algo}") for algo in ("allreduce", "bytegrad"))
    assert codes.bytes_sent == pytest.approx(full.bytes_sent / 4, rel=0.01)
    assert full.compute_s < codes.step_s < full.step_s


def test_the_mean_is_over_whole_periods():
    every = predicted("algo=allreduce", "max_steps=40")
    eighth = predicted("algo=local_sgd", "algo.interval=8", "max_steps=40")
    assert eighth.bytes_sent == pytest.approx(every.bytes_sent / 8)


@pytest.mark.parametrize(
    ("warming_up", "steady"),
    [
        (("algo=post_local_sgd", "algo.start_step=20"), ("algo=local_sgd",)),
        (("algo=power_sgd", "algo.warmup_steps=20"), ("algo=power_sgd", "algo.warmup_steps=2")),
        (("algo=post_local_sgd", "algo.start_step=6"), ("algo=local_sgd",)),
    ],
)
def test_a_warm_up_is_not_of_the_steady_state(warming_up, steady):
    early, late = predicted(*warming_up), predicted(*steady)
    assert early.bytes_sent == pytest.approx(late.bytes_sent)
    assert early.step_s == pytest.approx(late.step_s)


def test_a_warm_up_leaves_steps_enough_of_a_background_whose_rounds_are_no_steps():
    words = ("algo=async", "model=resnet50", "algo.interval_ms=0", "max_steps=40")
    early, late = predicted(*words, "algo.warmup_steps=40"), predicted(*words)
    assert early.bytes_sent == pytest.approx(late.bytes_sent, rel=0.1)
    assert early.step_s == pytest.approx(late.step_s, rel=0.1)


def test_means_of_a_background_are_over_whole_rounds_whatever_the_number_of_steps():
    """A round takes many steps, and begins at the end of the first step after the one before."""
    words = ("algo=async", "batch_size=4", "workers=8")
    few, some, many = (predicted(*words, f"max_steps={n}") for n in (1, 40, 100))
    assert some.bytes_sent == pytest.approx(few.bytes_sent, rel=1e-3)
    assert many.bytes_sent == pytest.approx(few.bytes_sent, rel=1e-3)
    assert many.step_s == pytest.approx(few.step_s, rel=1e-3)
    a_round = 2 * 7 / 8 * 4 * VGG16_PARAMETERS * WIRE_PER_PAYLOAD
    steps_a_round = a_round / few.bytes_sent
    assert steps_a_round == pytest.approx(round(steps_a_round), rel=1e-3)
    round_s = 8 * a_round / 10e9
    assert round_s < steps_a_round * few.step_s < 1.1 * round_s


def test_a_background_without_two_rounds_is_refused(monkeypatch):
    monkeypatch.setattr("experiments.predict.predict.MAX_STEPS", 30)
    words = ("algo=async", "model=resnet50", "algo.interval_ms=1000000", "max_steps=3")
    with pytest.raises(UserError, match=r"no two rounds of averaging .* end in .* s, "):
        predicted(*words)


def test_workers_that_seldom_meet_do_meet():
    every, seldom = (
        predicted("algo=local_sgd", f"algo.interval={interval}", "model=resnet50")
        for interval in (1, 20)
    )
    assert seldom.bytes_sent == pytest.approx(every.bytes_sent / 20)


def test_one_worker_sends_nothing_whatever_the_number_of_steps():
    case = case_of([*BASE, "algo=allreduce", "workers=1", "model=resnet50"])
    assert "steady state           nothing is sent\n" in describe(case, predict(case))


def test_steady_steps_are_the_whole_periods_in_the_second_half():
    assert steady_steps("xxabcabcabcabc") == 6
    assert steady_steps("warm-up..aaaaaaaaaa") == 9
    assert steady_steps("abcdefgh") == 4  # no period
    assert steady_steps("a") == 1


def test_the_optimizer_rests_where_the_algorithm_has_taken_over():
    adam = predicted("algo=allreduce", "optim=adam")
    qadam = predicted("algo=qadam", "algo.warmup_steps=2", "optim=adam")
    moved_s = 7 * 4 * VGG16_PARAMETERS / Device.load("v100").memory_rate
    assert adam.compute_s - qadam.compute_s == pytest.approx(moved_s, rel=1e-3)


def test_compute_hides_a_background_that_takes_longer_than_a_step():
    result = predicted("algo=async", "algo.interval_ms=0", "max_steps=40")
    all_reduce = predicted("algo=allreduce")
    assert all_reduce.exposed_share > 0.5
    assert result.exposed_share < 0.1
    assert 0 < result.bytes_sent < all_reduce.bytes_sent


@pytest.mark.parametrize("algo", ["allreduce", "bytegrad"])
def test_one_node_stands_for_all(algo):
    """What a dry run charges to one node, charged to all nodes alike, takes as long."""
    words = (f"algo={algo}", "algo.hierarchical=true", *MACHINES, "workers=32", "model=resnet50")
    case = case_of([*BASE, *words])
    buckets = meta_buckets(case.trace.parameters, 32, case.bucket_bytes)
    compute = case.device.compute_times(case.trace, buckets, case.precision)

    def timeline():
        transport = replace(NCCL, bytes_per_s=1e9 * case.device.link_gb_per_s())
        return Timeline(CostModel(case.net, 32, transport), compute, num_lanes=1)

    one = timeline()
    run = DryRun(
        case.algorithm,
        buckets,
        case.make_optimizer,
        one,
        memory_rate=case.device.memory_rate,
        nodes=case.nodes,
    )
    run.step()
    all_nodes = timeline()
    all_nodes.begin_step()
    for job in run.script[0]:
        all_nodes.begin_job(job.moment, job.bucket)
        for item in job.work:
            if isinstance(item, int | float):
                all_nodes.kernel(item)
                continue
            assert isinstance(item, Operation)
            inside = item.ranks == tuple(range(8))
            for first in range(0, 32, 8) if inside else [0]:
                ranks = tuple(rank + first for rank in item.ranks)
                all_nodes.on_operation(replace(item, ranks=ranks))
    all_nodes.end_step()
    np.testing.assert_allclose(all_nodes.time_s, one.time_s.max(), rtol=1e-9)


@dataclass(frozen=True, kw_only=True)
class AtStepBegin(Algorithm):
    def on_step_begin(self, context):
        for bucket in context.buckets:
            context.communicator.all_reduce_mean_(bucket.gradients)


def test_what_is_sent_when_the_optimizers_step_begins_is_a_job():
    case = case_of([*BASE, "algo=allreduce", "model=resnet50"])
    buckets = meta_buckets(case.trace.parameters, 16, case.bucket_bytes)
    compute = case.device.compute_times(case.trace, buckets, case.precision)
    live, again = (Timeline(CostModel(case.net, 16), compute, num_lanes=1) for _ in range(2))
    memory_rate = case.device.memory_rate
    run = DryRun(AtStepBegin(), buckets, case.make_optimizer, live, memory_rate=memory_rate)
    run.step()
    again.replay(run.script[0])
    assert again.time_s.tolist() == live.time_s.tolist()
    assert again.bytes_sent.tolist() == live.bytes_sent.tolist()


def test_more_workers_than_anybody_has():
    few, many = (predicted("algo=allreduce", f"workers={n}") for n in (16, 2048))
    assert few.step_s < many.step_s < 1.2 * few.step_s


def test_nics_links_and_rails_are_the_clusters():
    words = ("algo=allreduce", "nodes=4x4", "nic_gbit=10")
    one, four = (predicted(*words, f"rails={rails}") for rails in (1, 4))
    assert one.step_s - four.step_s > 0.5 * one.step_s
    fast, slow = (predicted(*words, "rails=100", f"inside={x}") for x in ("nvlink", "pcie"))
    assert fast.step_s < slow.step_s < one.step_s
    ring_s = 8 * 2 * 15 / 16 * 4 * VGG16_PARAMETERS / 10e9
    assert ring_s < one.step_s < 1.2 * ring_s


def test_half_precision_is_faster_where_there_are_tensor_cores():
    words = ("model=resnet50", "algo=allreduce", "net=none", "workers=1")
    plain, half = (predicted(*words, f"precision={p}") for p in ("float32", "float16"))
    assert half.compute_s < 0.5 * plain.compute_s


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("algo=allreduce", "model=cnn"), "model=cnn has no shapes: choose model=bert_base, "),
        (("algo=allreduce", "device=gpu"), "device=gpu cannot be read .*: choose a100, h100"),
        (("algo=allreduce", "accumulate=2"), "a step has one batch here"),
        (
            ("algo=allreduce", "precision=bfloat16"),
            "precision=bfloat16 is not known of NVIDIA V100",
        ),
        (("algo=torch_ddp_bf16",), "take algo=power_sgd, or algo=allreduce algo.wire=bf16"),
        (("algo=allreduce", "cluster.straggler=1"), "workers are alike here"),
        (("algo=allreduce", "+max_step=3"), "there is no key 'max_step': did you mean max_steps"),
        (("algo=allreduce", "inside=pcie"), "inside is of a node: say nodes=16x8, too"),
        (("algo=allreduce", "streams=4"), "streams=4 changes nothing in a prediction: leave .*=1"),
        (("algo=allreduce", "autotune=true"), "autotune=true changes nothing .*: leave .*=false"),
        (("algo=allreduce", "resume=a"), "resume=a changes nothing .*: leave resume=null"),
        (("algo=allreduce", "cluster.sharing=2"), "cluster.sharing=2 changes nothing"),
        (("algo=allreduce", "backend=gloo"), "are of NCCL's operations: leave out backend=gloo"),
        (("algo=allreduce", "nodes=16x8"), "workers=16 and nodes=16x8, which are 128 workers, do"),
        (("algo=allreduce", "tokens=8", "image=3x8x8"), "tokens=8 and image=3x8x8 both say what"),
        ((), "algo is missing"),
        (("--model", "vgg16"), "there is no option --model: write model=VALUE"),
        (("algo=allreduce", "workers=8", "model="), "model= has no shapes"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_sentence(words, complaint):
    with pytest.raises(UserError, match=complaint):
        predicted(*words)


def test_profile_is_another_name_of_device():
    words = [word for word in BASE if word != "device=v100"]
    assert case_of([*words, "algo=allreduce", "profile=a100"]).device == Device.load("a100")
    for no_word in ((), ("device=",), ("profile=",)):
        with pytest.raises(UserError, match="device is missing: choose one, such as device=v100"):
            case_of([*words, "algo=allreduce", *no_word])
    with pytest.raises(UserError, match="device and profile both name the device: leave one of"):
        case_of([*words, "algo=allreduce", "device=v100", "profile=a100"])


def command_line(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["predict", *words])
    with pytest.raises(SystemExit) as end:
        commands.run(main)
    return end.value.code, capsys.readouterr()


def test_the_command_line_prints_step_time_throughput_and_exposed_communication(
    monkeypatch, capsys
):
    code, printed = command_line(monkeypatch, capsys, *BASE, "+algo=bytegrad")
    assert (code, printed.err) == (0, "")
    for words in (
        "predicted: vgg16",
        "step time",
        "examples/s",
        "exposed communication",
        "steady state           the first step that communicates takes ",
        "compute ",
        "fitted to",
    ):
        assert words in printed.out


def test_the_command_line_refuses_with_one_sentence(monkeypatch, capsys):
    code, printed = command_line(monkeypatch, capsys, *BASE, "algo=nothing")
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("error: there is no algo named 'nothing'")
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(("first_s", "said"), [(-1e-9, " 0.0 ms"), (0.0123, " 12.3 ms")])
def test_what_the_first_step_takes_more_is_never_minus_nothing(first_s, said):
    result = replace(predicted("algo=allreduce", "model=resnet50"), first_s=first_s)
    assert f"takes{said} more" in _beside(result)
